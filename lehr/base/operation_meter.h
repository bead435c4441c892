// Counts the floating-point operations of matrix products and attention, and the bytes that other operators move.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>

#include "lehr/base/torch.h"

namespace lehr {

/// What operators did, or on meta would have done.
struct OperationCounts {
  double product_flops = 0;     ///< Of matrix products: two for each multiplication and addition.
  double attention_flops = 0;   ///< Of scores and weighted values; backward counts twice the forward.
  double recomputed_flops = 0;  ///< Of both: under a Recomputed.
  int64_t pointwise_bytes = 0;  ///< Read and written by operators that are neither, nor views.

  double flops() const { return product_flops + attention_flops; }
};

/// Counts what its thread does while it lives, and backward on that thread (of tensors on the CPU or meta): ATen's
/// operators by themselves, Lehr's fused ones by what they report. Meters do not nest: throws a usage error.
class OperationMeter {
 public:
  OperationMeter();
  ~OperationMeter();
  OperationMeter(const OperationMeter&) = delete;
  OperationMeter& operator=(const OperationMeter&) = delete;

  const OperationCounts& counts() const;
  void reset();

  struct State;

 private:
  std::unique_ptr<State> state_;
};

/// For activation checkpointing: what is computed while one lives was computed before.
class Recomputed {
 public:
  Recomputed();
  ~Recomputed();
  Recomputed(const Recomputed&) = delete;
  Recomputed& operator=(const Recomputed&) = delete;
};

/// @name For fused operators; they do nothing without a meter or a profile (operator_profile.h)
/// @{

void report_attention(double flops);
/// The tensors that an operator reads and writes; undefined ones are left out.
void report_pointwise(std::initializer_list<at::Tensor> tensors);
/// The same of operators that a meter counts by their operations, or not at all: for a profile.
void report_moved(c10::ArrayRef<at::Tensor> tensors);
/// @}

}  // namespace lehr
