#include "lehr/base/fast_exit.h"

#include <cstdio>
#include <cstdlib>

#include "lehr/base/torch.h"

namespace lehr {

namespace {
bool others_have_work_at_the_end() {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return true;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || __has_feature(memory_sanitizer)
  return true;
#endif
#endif
  return at::hasCUDA();
}
}  // namespace

void fast_exit(int code) {
  if (others_have_work_at_the_end()) {
    std::exit(code);
  }
  std::fflush(nullptr);
  std::_Exit(code);
}

}  // namespace lehr
