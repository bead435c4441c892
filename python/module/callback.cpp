#include "python/module/callback.h"

#include "lehr/base/error.h"

namespace lehr::python {

void Callback::operator()(int64_t argument) const {
  using Function = int64_t (*)(int64_t);
  // The address comes from ctypes, as a number.
  const auto function = reinterpret_cast<Function>(address_);  // NOLINT(performance-no-int-to-ptr)
  if (function(argument) != 0) {
    fail_runtime("a Python function raised an exception");
  }
}

}  // namespace lehr::python
