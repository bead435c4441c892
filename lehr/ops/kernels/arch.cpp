// Choice of the instruction set.
#include "lehr/base/call_context.h"
#include "lehr/ops/cpu_choice.h"

#ifdef __x86_64__
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace lehr::ops {

namespace {
const ContextSlot<int> kLowered("instruction set");  // by how many sets the best one is lowered

#ifdef __x86_64__
// Asks the system for the tile registers, once for all threads of the process. It refuses them in some containers.
bool may_use_tiles() {
  // From the kernel's documentation of XSTATE features that a process must ask for (arch/x86/xstate.rst).
  constexpr long kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr long kTileData = 18;               // XFEATURE_XTILEDATA
  constexpr unsigned kTilesOfBfloat16 = 1U << 22;
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (d & kTilesOfBfloat16) != 0 &&
         syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}
#endif
}  // namespace

Arch best_arch() {
#ifdef __x86_64__
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl")) {
    if (!__builtin_cpu_supports("avx512bf16")) {
      return Arch::avx512;
    }
    static const bool tiles = may_use_tiles();
    return tiles ? Arch::amx : Arch::avx512_bf16;
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    return Arch::avx2;
  }
#endif
  return Arch::generic;
}

Arch current_arch() {
  static const Arch best = chosen_arch();
  const auto at_most = static_cast<Arch>(static_cast<int>(Arch::amx) - kLowered.get());
  return at_most < best ? at_most : best;
}

ArchScope::ArchScope(Arch at_most) : before_(kLowered.get()) {
  kLowered.set(static_cast<int>(Arch::amx) - static_cast<int>(at_most));
}
ArchScope::~ArchScope() {
  kLowered.set(before_);
}

}  // namespace lehr::ops
