// Choice of the instruction set.
#include "lehr/ops/cpu_choice.h"

#ifdef __x86_64__
#include <cpuid.h>
#endif

namespace lehr::ops {

namespace {
thread_local Arch at_most_of_this_thread = Arch::avx512_bf16;
}

bool has_amx_bf16(Arch arch) {
#ifdef __x86_64__
  static const bool has = [] {
    unsigned a = 0, b = 0, c = 0, d = 0;
    return may_use_amx() && __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (d & (1U << 22)) != 0;
  }();
  return arch == Arch::avx512_bf16 && has;
#else
  static_cast<void>(arch);
  return false;
#endif
}

Arch best_arch() {
#ifdef __x86_64__
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl")) {
    return __builtin_cpu_supports("avx512bf16") ? Arch::avx512_bf16 : Arch::avx512;
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    return Arch::avx2;
  }
#endif
  return Arch::generic;
}

Arch current_arch() {
  static const Arch best = chosen_arch();
  return at_most_of_this_thread < best ? at_most_of_this_thread : best;
}

ArchScope::ArchScope(Arch at_most) : before_(at_most_of_this_thread) {
  at_most_of_this_thread = at_most;
}
ArchScope::~ArchScope() {
  at_most_of_this_thread = before_;
}

}  // namespace lehr::ops
