// The CPU kernels of an operator: a struct of functions for each element type, compiled once per instruction set.
//
// An operator declares the struct in its kernels.h and fills it in its kernel.inl (LEHR_KERNELS, vec.inl), which all
// instruction sets but AMX compile, and for AMX in its amx.inl. There is no list of operators: cpu_kernels() refers to
// the structs by their types, and the linker reports one that no file fills.
//
// The kernels are compiled several times with different compiler flags. So neither this header, nor kernels.h, nor the
// kernels may include inline functions that the rest of the program uses too: the linker would keep one copy, perhaps
// one that this machine cannot run. Hence no LibTorch and no standard containers here.
#pragma once

#include <cstdint>

namespace lehr::ops {

/// A bfloat16 in memory, with the layout of at::BFloat16.
struct Bf16 {
  uint16_t bits;
};

template <class T>
struct WideOf {
  using type = float;
};
template <>
struct WideOf<double> {
  using type = double;
};
/// The type in which elements of type T are computed.
template <class T>
using Wide = typename WideOf<T>::type;

/// Instruction sets, weakest first. The last two are AVX-512 with dot products of bfloat16 pairs (AVX512-BF16), and the
/// same with bfloat16 matmuls in tile registers (AMX).
enum class Arch { generic, avx2, avx512, avx512_bf16, amx };

/// Returns the best instruction set that this build has and this CPU supports.
Arch best_arch();

/// Returns the instruction set in use: chosen_arch() (ops/cpu_choice.h), or a lower one that an ArchScope of this
/// thread asks for.
Arch current_arch();

/// Limits current_arch() of this thread until destroyed, so that a test can run every variant.
class ArchScope {
 public:
  explicit ArchScope(Arch at_most);
  ~ArchScope();
  ArchScope(const ArchScope&) = delete;
  ArchScope& operator=(const ArchScope&) = delete;

 private:
  int before_;
};

/// @name An operator's kernels, compiled for one instruction set; LEHR_KERNELS defines them
/// @{
namespace generic {
template <class Kernels>
const Kernels& kernels_of();
}
namespace avx2 {
template <class Kernels>
const Kernels& kernels_of();
}
namespace avx512 {
template <class Kernels>
const Kernels& kernels_of();
}
namespace avx512bf16 {
template <class Kernels>
const Kernels& kernels_of();
}
namespace amx {
template <class Kernels>
const Kernels& kernels_of();
}
/// @}

/// Returns an operator's kernels for an instruction set; there are those of AVX512-BF16 if `Kernels::kHasPairs` is
/// true, and those of AMX if `Kernels::kHasTiles` is. Inside a parallel region, pass the arch of the thread that
/// started it.
template <class Kernels>
const Kernels& cpu_kernels(Arch arch = current_arch()) {
#ifdef __x86_64__
  if constexpr (requires { requires Kernels::kHasTiles; }) {
    if (arch == Arch::amx) {
      return amx::kernels_of<Kernels>();
    }
  }
  if constexpr (requires { requires Kernels::kHasPairs; }) {
    if (arch >= Arch::avx512_bf16) {
      return avx512bf16::kernels_of<Kernels>();
    }
  }
  if (arch >= Arch::avx512) {
    return avx512::kernels_of<Kernels>();
  }
  if (arch == Arch::avx2) {
    return avx2::kernels_of<Kernels>();
  }
#else
  static_cast<void>(arch);
#endif
  return generic::kernels_of<Kernels>();
}

}  // namespace lehr::ops
