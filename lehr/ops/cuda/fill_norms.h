// The table's kernels of norms and rotations, for any Launch: Launch::groups(body, count, threads) runs body(group,
// index) for every index below `count`, each by a group of that many threads. Launch::warps does so for at most 32
// threads, and Launch::blocks for whole warps; each of the two takes half the time to compile.
#pragma once

#include "lehr/ops/cuda/rotary.h"

namespace lehr::ops::cuda {

template <class Launch, class T>
struct NormKernels {
  static Status rms_norm_forward(const RmsNormForward<T>& call, int64_t rows) {
    return Launch::groups(RmsNormForwardRow<T>{call}, rows, row_threads<T>(call.size));
  }

  static Status rms_norm_backward(const RmsNormBackward<T>& call, const WeightGradient<T>& dweight, int64_t rows) {
    const RmsNormBackwardRows<T> body{call, dweight.parts, rows, dweight.count};
    const Status status = Launch::groups(body, dweight.count, row_threads<T>(call.size));
    return status != nullptr ? status : sum_parts(dweight, call.size);
  }

  static Status rotary(const RotaryCall<T>& call, int64_t tokens) {
    const HeadPairs pairs = pairs_of(call.angles, call.size);
    const int64_t threads = threads_for(pairs.count() / kPack<T>, kAnyNumber);
    return Launch::warps(RotateHead<T>{call, pairs}, tokens * call.heads, threads);
  }

  static Status norm_rotary_forward(const NormRotaryForward<T>& call, int64_t tokens) {
    const NormRotateHead<T> body{call, pairs_of(call.angles, call.norm.size)};
    return Launch::warps(body, tokens * call.heads, head_threads<T>(call.norm.size));
  }

  static Status norm_rotary_backward(
      const NormRotaryBackward<T>& call, const WeightGradient<T>& dweight, int64_t tokens) {
    const HeadPairs pairs = pairs_of(call.angles, call.norm.size);
    const NormRotateBackwardHeads<T> body{call, pairs, dweight.parts, tokens * call.heads, dweight.count};
    const Status status = Launch::warps(body, dweight.count, head_threads<T>(call.norm.size));
    return status != nullptr ? status : sum_parts(dweight, call.norm.size);
  }

  static NormTable<T> made() {
    NormTable<T> table = {};
    table.rms_norm_forward = rms_norm_forward;
    table.rms_norm_backward = rms_norm_backward;
    table.rotary = rotary;
    table.norm_rotary_forward = norm_rotary_forward;
    table.norm_rotary_backward = norm_rotary_backward;
    return table;
  }

 private:
  static constexpr int64_t kAnyNumber = int64_t{1} << 40;

  static HeadPairs pairs_of(const RotaryAngles<T>& angles, int64_t size) {
    return {static_cast<int>(angles.rotated), static_cast<int>(size), angles.interleaved};
  }

  static Status sum_parts(const WeightGradient<T>& dweight, int64_t size) {
    if (dweight.parts == nullptr) {
      return nullptr;
    }
    return Launch::blocks(SumParts<T>{dweight, size}, size / SumParts<T>::kColumns, dweight.count > 32 ? 128 : 32);
  }
};

}  // namespace lehr::ops::cuda
