// A meter of the floating-point operations of matmuls and attention, and of the bytes that other operators move.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>

#include "lehr/base/torch.h"

namespace lehr {

/// The work of the operators that ran, or would have run on meta.
struct OperationCounts {
  double matmul_flops = 0;      ///< Matmuls: two per multiply-add.
  double attention_flops = 0;   ///< Attention scores and weighted values; backward counts twice the forward.
  double recomputed_flops = 0;  ///< The part of both that ran under Recomputed.
  int64_t pointwise_bytes = 0;  ///< Bytes read and written by all other operators, except views.

  double flops() const { return matmul_flops + attention_flops; }
};

/// Counts the operators of its thread during its lifetime, including backward on that thread (tensors on the CPU or
/// meta). ATen's operators are counted automatically, Lehr's fused ones by their reports. Meters do not nest: a second
/// one throws a usage error.
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

/// Scope for activation checkpointing: operators in it are counted as recomputation.
class Recomputed {
 public:
  Recomputed();
  ~Recomputed();
  Recomputed(const Recomputed&) = delete;
  Recomputed& operator=(const Recomputed&) = delete;
};

/// @name Reports of fused operators; they do nothing without a meter or a profile (operator_profile.h)
/// @{
/// True if a meter or a profile of this thread counts the reports.
bool counts_reports();
/// Reports the FLOPs of attention: its scores and weighted values.
void report_attention(double flops);
/// Reports the tensors that an operator reads and writes; undefined ones are skipped.
void report_pointwise(std::initializer_list<at::Tensor> tensors);
/// Reports the same for operators that a meter counts by FLOPs or not at all; only profiles use it.
void report_moved(c10::ArrayRef<at::Tensor> tensors);
/// @}

}  // namespace lehr
