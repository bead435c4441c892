// All kernels and their tables, in the namespace LEHR_ARCH of one instruction set.
#include "lehr/ops/kernels/table.h"
#include "lehr/ops/kernels/vec.inl"
#include "lehr/ops/kernels/operators.inl"

namespace lehr::ops::LEHR_ARCH {
namespace {

// The order matters: rotary.inl uses functions of rms_norm.inl.
#include "lehr/ops/kernels/adamw.inl"
#include "lehr/ops/kernels/attention.inl"
#include "lehr/ops/kernels/cross_entropy.inl"
#include "lehr/ops/kernels/float8.inl"
#include "lehr/ops/kernels/gemm.inl"
#include "lehr/ops/kernels/multiply_add.inl"
#include "lehr/ops/kernels/pointwise.inl"
#include "lehr/ops/kernels/rms_norm.inl"
#include "lehr/ops/kernels/rotary.inl"
#include "lehr/ops/kernels/stochastic.inl"
#include "lehr/ops/kernels/token_copies.inl"

template <class T>
constexpr auto attention_kernels() {
  struct Pair {
    decltype(KernelTable<T>::attention_forward) forward = nullptr;
    decltype(KernelTable<T>::attention_backward) backward = nullptr;
  };
  if constexpr (sizeof(Wide<T>) == sizeof(float)) {
    return Pair{attention_forward<T>, attention_backward<T>};
  } else {
    return Pair{};
  }
}

template <class T>
constexpr auto optimizer_kernels() {
  struct OfOptimizers {
    decltype(KernelTable<T>::adamw) adamw = nullptr;
    decltype(KernelTable<T>::stochastic_round) stochastic_round = nullptr;
    decltype(KernelTable<T>::stochastic_adamw) stochastic_adamw = nullptr;
  };
  if constexpr (sizeof(Wide<T>) == sizeof(float)) {
    return OfOptimizers{adamw<T>, stochastic_round<T>, stochastic_adamw<T>};
  } else {
    return OfOptimizers{};
  }
}

template <class T>
constexpr KernelTable<T> kTable = {
    .rms_norm_forward = rms_norm_forward<T>,
    .rms_norm_backward = rms_norm_backward<T>,
    .rotary = rotary<T>,
    .norm_rotary_forward = norm_rotary_forward<T>,
    .norm_rotary_backward = norm_rotary_backward<T>,
    .cross_entropy_row = cross_entropy_row<T>,
    .sum_of_squares = sum_of_squares<T>,
    .scale = scale<T>,
    .multiply_adds = multiply_adds<T>,
    .sum_rows = sum_rows<T>,
    .sum_copies = sum_copies<T>,
    .sum_copies_backward = sum_copies_backward<T>,
    .float8_rows = float8_rows<T>,
    .float8_columns = float8_columns<T>,
    .attention_forward = attention_kernels<T>().forward,
    .attention_backward = attention_kernels<T>().backward,
    .adamw = optimizer_kernels<T>().adamw,
    .stochastic_round = optimizer_kernels<T>().stochastic_round,
    .stochastic_adamw = optimizer_kernels<T>().stochastic_adamw,
};

}  // namespace

const GemmKernels& gemm_kernels() {
  return kGemm<float, 1>;
}
const GemmKernels& widening_gemm_kernels() {
  return kGemm<Bf16, 1>;
}
const KernelTable<float>& float_kernels() {
  return kTable<float>;
}
const KernelTable<double>& double_kernels() {
  return kTable<double>;
}
const KernelTable<Bf16>& bf16_kernels() {
  return kTable<Bf16>;
}

}  // namespace lehr::ops::LEHR_ARCH
