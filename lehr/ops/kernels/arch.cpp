// Choice of the instruction set.
#include "lehr/base/call_context.h"
#include "lehr/ops/cpu_choice.h"

#ifdef __x86_64__
#include <cpuid.h>
#endif

namespace lehr::ops {

namespace {
const ContextSlot<int> kLowered("instruction set");  // by how many sets the best one is lowered
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
  const auto at_most = static_cast<Arch>(static_cast<int>(Arch::avx512_bf16) - kLowered.get());
  return at_most < best ? at_most : best;
}

ArchScope::ArchScope(Arch at_most) : before_(kLowered.get()) {
  kLowered.set(static_cast<int>(Arch::avx512_bf16) - static_cast<int>(at_most));
}
ArchScope::~ArchScope() {
  kLowered.set(before_);
}

}  // namespace lehr::ops
