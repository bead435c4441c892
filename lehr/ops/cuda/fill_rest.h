// The table's other kernels, for any Launch; see fill_norms.h.
#pragma once

#include "lehr/ops/cuda/cross_entropy.h"
#include "lehr/ops/cuda/float8.h"
#include "lehr/ops/cuda/pointwise.h"
#include "lehr/ops/cuda/stochastic.h"
#include "lehr/ops/cuda/tokens.h"

namespace lehr::ops::cuda {

template <class Launch, class T>
struct RestKernels {
  static Status cross_entropy(const CrossEntropyCall<T>& call, int64_t rows) {
    const bool packed = call.size % kPack<T> == 0 && aligned(call.logits);
    const int64_t held = call.gradient ? held_of_row<T>(call.size, Launch::most_scratch()) : 0;
    return Launch::blocks(
        CrossEntropyRow<T>{call, held, packed}, rows, kMostThreads, held * static_cast<int64_t>(sizeof(T)));
  }

  static Status sums_of_squares(const TensorList& list, double* sums) {
    return Launch::blocks(SumSquaresOfPiece<T>{list, sums}, list.pieces, kMostThreads);
  }

  static Status scale(const TensorList& list, const double* factor) {
    return Launch::blocks(ScalePiece<T>{list, factor}, list.pieces, kMostThreads);
  }

  static Status copy_tokens(
      const T* tokens, const int64_t* inverse, T* copies, int64_t count, int64_t choices, int64_t size) {
    const bool packed = size % kPack<T> == 0 && aligned(tokens, copies);
    return Launch::warps(CopyToken<T>{tokens, inverse, copies, choices, size, packed}, count, 32);
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

  static Status to_float8(const Float8Operand<T>& call) {
    const bool packed = call.columns % kPack<T> == 0 && aligned(call.x, call.by_row);
    const int64_t parts = float8_parts(call.rows);
    const int64_t of_columns = scratch_columns<T>(call.columns) * static_cast<int64_t>(sizeof(float));
    const bool at_once = call.by_column != nullptr && of_columns <= Launch::most_scratch();
    Status status = nullptr;
    if (call.by_row != nullptr || at_once) {
      status = round_rows(call, 0, call.columns, call.by_row != nullptr, at_once, packed);
    }
    if (call.by_column == nullptr) {
      return status;
    }
    // Columns that do not fit into scratch memory together are searched in several passes.
    const int64_t most =
        at_once ? call.columns : Launch::most_scratch() / static_cast<int64_t>(sizeof(float)) / 64 * 64;
    for (int64_t first = 0; status == nullptr && first < call.columns; first += most) {
      const int64_t last = first + most < call.columns ? first + most : call.columns;
      if (!at_once) {
        status = round_rows(call, first, last, false, true, packed);
      }
      if (status == nullptr) {
        const ScaleColumns scales{call.parts, parts, last - first, call.column_scales + first};
        status = Launch::blocks(scales, (last - first + kTileThreads - 1) / kTileThreads, kTileThreads);
      }
    }
    if (status != nullptr) {
      return status;
    }
    using Tile = RoundColumns<T>;
    const int64_t tiles = Tile::tiles_down(call.rows) * ((call.columns + Tile::kColumns - 1) / Tile::kColumns);
    return Launch::blocks(Tile{call, packed}, tiles, Tile::kThreads, Tile::kScratch);
  }

  static Status clear_empty_groups(T* groups, const int32_t* ends, int64_t count, int64_t size) {
    const int64_t pieces = (size + kListPiece - 1) / kListPiece;
    return Launch::blocks(ClearEmptyGroup<T>{groups, ends, size, pieces}, count * pieces, kTileThreads);
  }

  static Status stochastic_adamw(const StochasticAdamWList<T>& list) {
    return list.wide_grads ? Launch::warps(StochasticAdamWGroup<T, float>{list}, list.groups, kNoiseThreads)
                           : Launch::warps(StochasticAdamWGroup<T, Bf16>{list}, list.groups, kNoiseThreads);
  }

  static RestTable<T> made() {
    RestTable<T> table = {};
    table.cross_entropy = cross_entropy;
    table.sums_of_squares = sums_of_squares;
    table.scale = scale;
    table.copy_tokens = copy_tokens;
    table.sum_copies = sum_copies;
    table.sum_copies_backward = sum_copies_backward;
    table.to_float8 = to_float8;
    table.clear_empty_groups = clear_empty_groups;
    table.stochastic_adamw = stochastic_adamw;
    return table;
  }

 private:
  static Status round_rows(
      const Float8Operand<T>& call, int64_t first, int64_t last, bool round, bool largest, bool packed) {
    const int64_t of_columns = largest ? scratch_columns<T>(last - first) * static_cast<int64_t>(sizeof(float)) : 0;
    const int64_t held = round ? held_of_row<T>(last - first, Launch::most_scratch() - of_columns) : 0;
    const int64_t groups = largest ? float8_parts(call.rows) : call.rows;
    const int64_t packs = power_of_two_for((last - first + kPack<T> - 1) / kPack<T>);
    const int64_t threads = packs < 32 ? 32 : packs > kMostThreads ? kMostThreads : packs;
    const RoundRows<T> body{call, largest ? call.parts : nullptr, round, groups, first, last, held, packed};
    return Launch::blocks(body, groups, threads, of_columns + held * static_cast<int64_t>(sizeof(T)));
  }
};

template <class Launch>
struct PlainKernels {
  static Status sum(const double* parts, int64_t count, double* total) {
    return Launch::blocks(SumAll{parts, count, total}, 1, kMostThreads);
  }

  static Status known_ids(const int64_t* ids, int64_t count, int64_t size, int64_t* known, int64_t* note) {
    return Launch::blocks(KnownIds{ids, count, size, known, note}, 1, kMostThreads);
  }

  static Status stochastic_round(const float* x, Bf16* y, const RoundingNoise& noise, const RoundingRuns& runs) {
    const bool even = reinterpret_cast<uintptr_t>(x) % sizeof(Pair<float>) == 0 &&
                      reinterpret_cast<uintptr_t>(y) % sizeof(Pair<Bf16>) == 0;
    return Launch::warps(RoundGroup{x, y, noise, runs, even}, groups_of(runs), kNoiseThreads);
  }
};

}  // namespace lehr::ops::cuda
