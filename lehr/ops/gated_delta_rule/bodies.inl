// Bodies of the chunk-local kernels of the gated delta rule: a thread per token of a chunk.
#pragma once

#include "lehr/ops/cuda/kernel.h"
#include "lehr/ops/cuda/sequences.h"
#include "lehr/ops/gated_delta_rule/launches.h"

namespace lehr::ops::cuda {

constexpr int kChunk = static_cast<int>(kDeltaChunk);

/// Returns exp(b - earlier b).
LEHR_HOST_DEVICE float decay_between(double sum, double earlier) {
  return exponential(static_cast<float>(sum - earlier));
}

/// The place of a chunk of a value head.
struct DeltaPlace {
  int64_t row, chunk, head;  // of the call's rows; of all value heads

  LEHR_HOST_DEVICE DeltaPlace(const DeltaLayout& layout, int64_t index) {
    const int64_t of_group = index % layout.group, job = index / layout.group / layout.chunks;
    chunk = index / layout.group % layout.chunks;
    row = layout.first_row + job / layout.heads;
    head = (layout.first_head + job % layout.heads) * layout.group + of_group;
  }
  /// The offset of a token of the chunk in a tensor (rows, chunks kDeltaChunk, value heads).
  LEHR_HOST_DEVICE int64_t offset(const DeltaLayout& layout, int64_t token) const {
    return ((row * layout.chunks + chunk) * kChunk + token) * layout.all_heads * layout.group + head;
  }
};

struct DeltaDecaysOfChunk {
  static constexpr int64_t kScratch = kChunk * static_cast<int64_t>(sizeof(double) + 2 * sizeof(float));
  DeltaLayout layout;
  const float* decay;
  const float* beta;
  DeltaDecays to;

  template <class Group>
  LEHR_HOST_DEVICE void operator()(Group& group, int64_t index) const {
    auto* const sums = static_cast<double*>(group.scratch());
    auto* const decays = reinterpret_cast<float*>(sums + kChunk);
    float* const begins = decays + kChunk;
    const DeltaPlace place(layout, index);
    const int token = group.rank();
    const int64_t first_of_chunk = place.chunk * kChunk, position = first_of_chunk + token;
    const bool exists = position < layout.tokens;
    const int64_t row = place.row * layout.tokens;
    const int64_t at = row + (exists ? position : layout.tokens - 1);  // padding is of the last sequence
    SequenceWalk walk(layout.cumulative_lengths, layout.borders, row, at);
    const int64_t first = walk.begin_of(at) - row;
    const bool continues = first < first_of_chunk || first == 0;
    const int begin = first > first_of_chunk ? static_cast<int>(first - first_of_chunk) : 0;
    decays[token] = exists ? decay[place.offset(layout, token)] : 0;
    group.sync();
    double sum = 0;
    for (int i = 0; i <= token; ++i) {
      sum += static_cast<double>(decays[i]);
    }
    sums[token] = sum;
    begins[token] = static_cast<float>(begin);
    group.sync();
    const bool lasts = begins[kChunk - 1] <= static_cast<float>(token);
    const int64_t here = index * kChunk + token;
    to.sum[here] = sum;
    to.from_begin[here] = continues ? exponential(static_cast<float>(sum)) : 0;
    to.to_end[here] = lasts ? decay_between(sums[kChunk - 1], sum) : 0;
    to.beta[here] = exists ? beta[place.offset(layout, token)] : 0;
    to.begin[here] = begin;
  }
};

/// A column per thread. The inverse is solved row by row, with its column in registers.
struct DeltaTrianglesOfChunk {
  static constexpr int kLower = kChunk * (kChunk - 1) / 2;
  static constexpr int64_t kScratch =
      kChunk * static_cast<int64_t>(sizeof(double)) + (kLower + 2 * kChunk) * static_cast<int64_t>(sizeof(float));
  DeltaLayout layout;
  DeltaDecays decays;
  DeltaTriangles to;

  template <class Group>
  LEHR_HOST_DEVICE void operator()(Group& group, int64_t index) const {
    auto* const sums = static_cast<double*>(group.scratch());
    auto* const betas = reinterpret_cast<float*>(sums + kChunk);
    float* const begins = betas + kChunk;
    float* const lower = begins + kChunk;  // the system's matrix, row by row without its diagonal
    const int column = group.rank();
    const int64_t first = index * kChunk, square = first * kChunk, key = index / layout.group * kChunk * kChunk;
    const double sum = decays.sum[first + column];
    const float beta = decays.beta[first + column];
    sums[column] = sum;
    betas[column] = beta;
    begins[column] = static_cast<float>(decays.begin[first + column]);
    group.sync();
    for (int row = 0; row < kChunk; ++row) {
      const bool related = row >= column && begins[row] <= static_cast<float>(column);
      const float decay = related ? decay_between(sums[row], sum) : 0;
      const int at = row * kChunk + column;
      if (to.mix != nullptr) {
        to.mix[square + at] = related ? to.qk[key + at] * decay : 0;
      }
      if (row > column && to.inverse != nullptr) {
        lower[row * (row - 1) / 2 + column] = related ? betas[row] * to.kk[key + at] * decay : 0;
      }
    }
    if (to.inverse == nullptr) {
      return;
    }
    group.sync();
    const float weight = -beta * decays.from_begin[first + column];
    float solved[kChunk];
#pragma unroll
    for (int row = 0; row < kChunk; ++row) {
      float x = row == column ? 1 : 0;
#pragma unroll
      for (int i = 0; i < row; ++i) {
        x -= lower[row * (row - 1) / 2 + i] * solved[i];
      }
      solved[row] = x;
      to.inverse[square + row * kChunk + column] = x;
      to.weights[square + row * kChunk + column] = x * weight;
    }
  }
};

/// Processes a chunk of a key head, with its value heads one after the other: a row, and then a column, per thread.
struct DeltaTrianglesBackwardOfChunk {
  static constexpr int64_t kScratch = kChunk * static_cast<int64_t>(sizeof(double) + 4 * sizeof(float));
  DeltaLayout layout;
  DeltaDecays decays;
  DeltaTrianglesBackward call;

  template <class Group>
  LEHR_HOST_DEVICE void operator()(Group& group, int64_t index) const {
    Shared shared(group.scratch());
    for (int64_t of_group = 0; of_group < layout.group; ++of_group) {
      const int64_t chunk = index * layout.group + of_group;
      process(group, index, chunk, of_group == 0, shared);
      group.sync();
    }
  }

 private:
  struct Shared {
    double* sums;
    float *betas, *begins, *dsums, *kept;
    LEHR_HOST_DEVICE explicit Shared(void* scratch)
        : sums(static_cast<double*>(scratch)),
          betas(reinterpret_cast<float*>(sums + kChunk)),
          begins(betas + kChunk),
          dsums(begins + kChunk),
          kept(dsums + kChunk) {}
  };
  /// Of an element of the triangles: the gradients of its products, and that of its decay.
  struct Element {
    float dqk = 0, dkk = 0, dbeta = 0, through_decay = 0;
  };

  LEHR_HOST_DEVICE Element element(const Shared& shared, int64_t key, int64_t square, int row, int column) const {
    if (column > row || shared.begins[row] > static_cast<float>(column)) {
      return {};
    }
    const int at = row * kChunk + column;
    const float decay = decay_between(shared.sums[row], shared.sums[column]);
    const float dmix = call.dmix[square + at] * decay;
    if (row == column) {
      return {.dqk = dmix};
    }
    const float through_mix = dmix * call.qk[key + at];
    if (call.outer == nullptr) {
      return {.dqk = dmix, .through_decay = through_mix};
    }
    const float dsystem = -call.outer[square + at] * decay, kk = call.kk[key + at], beta = shared.betas[row];
    return {
        .dqk = dmix, .dkk = dsystem * beta, .dbeta = dsystem * kk, .through_decay = through_mix + dsystem * beta * kk};
  }

  template <class Group>
  LEHR_HOST_DEVICE void process(Group& group, int64_t index, int64_t chunk, bool first, const Shared& shared) const {
    const int token = group.rank();
    const int64_t here = chunk * kChunk + token, square = chunk * kChunk * kChunk, key = index * kChunk * kChunk;
    shared.sums[token] = decays.sum[here];
    shared.betas[token] = decays.beta[here];
    shared.begins[token] = static_cast<float>(decays.begin[here]);
    shared.kept[token] = call.through_end[here];
    group.sync();
    float dbeta = call.dbeta_direct[here], dsum = call.through_begin[here];
#pragma unroll 1
    for (int column = decays.begin[here]; column < token; ++column) {
      const Element at = element(shared, key, square, token, column);
      dbeta += at.dbeta;
      dsum += at.through_decay;
    }
#pragma unroll 1
    for (int row = 0; row < kChunk; ++row) {
      const Element at = element(shared, key, square, row, token);
      const int64_t to = key + row * kChunk + token;
      call.dqk[to] = at.dqk + (first ? 0 : call.dqk[to]);
      if (call.dkk != nullptr) {
        call.dkk[to] = at.dkk + (first ? 0 : call.dkk[to]);
      }
      dsum -= at.through_decay;
    }
    shared.dsums[token] = dsum;
    group.sync();
    const DeltaPlace place(layout, chunk);
    call.ddecay[place.offset(layout, token)] = ddecay_of(shared, token, call.through_whole[chunk]);
    call.dbeta[place.offset(layout, token)] = dbeta;
  }

  /// A decay counts in the sums of its token and of later ones of the sequence, and in what the next state keeps of
  /// the state before the chunk and of earlier tokens.
  LEHR_HOST_DEVICE static float ddecay_of(const Shared& shared, int token, float through_whole) {
    const auto position = static_cast<float>(token);
    float ddecay = 0;
    for (int later = kChunk - 1; later >= token; --later) {
      ddecay += shared.begins[later] <= position ? shared.dsums[later] : 0;
    }
    if (shared.begins[kChunk - 1] <= position) {
      ddecay += through_whole;
      for (int earlier = static_cast<int>(shared.begins[kChunk - 1]); earlier < token; ++earlier) {
        ddecay += shared.kept[earlier];
      }
    }
    return ddecay;
  }
};

}  // namespace lehr::ops::cuda
