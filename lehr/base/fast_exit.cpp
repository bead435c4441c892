#include "lehr/base/fast_exit.h"

#include <cstdio>
#include <cstdlib>

#include "lehr/base/sanitizer.h"
#include "lehr/base/torch.h"

namespace lehr {

void fast_exit(int code) {
  if (kSanitized || at::hasCUDA()) {  // sanitizers and CUDA run code at exit
    std::exit(code);
  }
  std::fflush(nullptr);
  std::_Exit(code);
}

}  // namespace lehr
