// The table's other kernels, for any way to launch; see fill_norms.h.
#pragma once

#include "lehr/ops/cuda/cross_entropy.h"
#include "lehr/ops/cuda/pointwise.h"
#include "lehr/ops/cuda/stochastic.h"
#include "lehr/ops/cuda/tokens.h"

namespace lehr::ops::cuda {

template <class Launch, class T>
struct RestKernels {
  static Status silu_mul_forward(const T* gate, const T* up, T* y, int64_t count) {
    return Launch::blocks(SiluMulForward<T>{gate, up, y, count, aligned(gate, up, y)}, tiles_for(count), kTileThreads);
  }

  static Status silu_mul_backward(const T* dy, const T* gate, const T* up, T* dgate, T* dup, int64_t count) {
    return Launch::blocks(
        SiluMulBackward<T>{dy, gate, up, dgate, dup, count, aligned(dy, gate, up, dgate, dup)},
        tiles_for(count),
        kTileThreads);
  }

  static Status cross_entropy(const CrossEntropyCall<T>& call, int64_t rows) {
    const bool packed = call.size % kPack<T> == 0 && aligned(call.logits);
    return Launch::blocks(CrossEntropyRow<T>{call, packed}, rows, kMostThreads);
  }

  static Status sums_of_squares(const TensorList& list, double* sums) {
    return Launch::blocks(SumSquaresOfPiece<T>{list, sums}, list.pieces, kMostThreads);
  }

  static Status scale(const TensorList& list, const double* factor) {
    return Launch::blocks(ScalePiece<T>{list, factor}, list.pieces, kMostThreads);
  }

  static Status copy_tokens(
      const T* tokens, const int64_t* order, T* copies, int64_t rows, int64_t choices, int64_t size) {
    const bool packed = size % kPack<T> == 0 && aligned(tokens, copies);
    return Launch::warps(CopyToken<T>{tokens, order, copies, choices, size, packed}, rows, 32);
  }

  static Status sum_copies(const TokenCopies<T>& call, T* out, int64_t tokens) {
    const bool packed = call.size % kPack<T> == 0 && aligned(call.sorted, out);
    return Launch::warps(SumCopies<T>{call, out, packed}, tokens, 32);
  }

  static Status sum_copies_backward(
      const TokenCopies<T>& call, const T* dout, T* dsorted, T* dweights, int64_t tokens) {
    const bool packed = call.size % kPack<T> == 0 && aligned(call.sorted, dout, dsorted);
    const SumCopiesBackward<T> body{call, dout, dsorted, dweights, packed};
    return Launch::warps(body, tokens * call.choices, 32);
  }

  static Status stochastic_adamw(const StochasticAdamWCall<T>& call, const RoundingRuns& runs) {
    const int64_t groups = runs.runs * groups_a_run(runs.count);
    bool even = paired(call.value) && paired(call.exp_avg) && paired(call.exp_avg_sq);
    if (call.grad != nullptr) {
      even = even && paired(call.grad);
      return Launch::warps(StochasticAdamWGroup<T, float>{call, call.grad, runs, even}, groups, kNoiseThreads);
    }
    even = even && paired(call.grad_bf16);
    return Launch::warps(StochasticAdamWGroup<T, Bf16>{call, call.grad_bf16, runs, even}, groups, kNoiseThreads);
  }

  static void fill(ElementKernels<T>& table) {
    table.silu_mul_forward = silu_mul_forward;
    table.silu_mul_backward = silu_mul_backward;
    table.cross_entropy = cross_entropy;
    table.sums_of_squares = sums_of_squares;
    table.scale = scale;
    table.copy_tokens = copy_tokens;
    table.sum_copies = sum_copies;
    table.sum_copies_backward = sum_copies_backward;
    table.stochastic_adamw = stochastic_adamw;
  }

 private:
  static constexpr int64_t tiles_for(int64_t count) { return (count + kTile<T> - 1) / kTile<T>; }
  template <class E>
  static bool paired(const E* pointer) {
    return reinterpret_cast<uintptr_t>(pointer) % (2 * sizeof(E)) == 0;
  }
};

template <class Launch>
struct PlainKernels {
  static Status sum(const double* parts, int64_t count, double* total) {
    return Launch::blocks(SumAll{parts, count, total}, 1, kMostThreads);
  }

  static Status stochastic_round(const float* x, Bf16* y, const RoundingNoise& noise, const RoundingRuns& runs) {
    const bool even = reinterpret_cast<uintptr_t>(x) % sizeof(Pair<float>) == 0 &&
                      reinterpret_cast<uintptr_t>(y) % sizeof(Pair<Bf16>) == 0;
    return Launch::warps(RoundGroup{x, y, noise, runs, even}, runs.runs * groups_a_run(runs.count), kNoiseThreads);
  }
};

}  // namespace lehr::ops::cuda
