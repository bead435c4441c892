// FlashAttention-2 (Dao, https://arxiv.org/abs/2307.08691) on 64 x 64 tiles of scores S, causal, forward and backward.
// A job is one key/value head of one sequence with the query heads that share it (grouped-query attention).
#pragma once

#include "lehr/ops/attention/kernels.h"
#include "lehr/ops/attention/tile.inl"
#include "lehr/ops/kernels/vec.inl"

namespace lehr::ops::LEHR_ARCH {
namespace {

// Offsets and strides of one job. `member` is a query head of the group.
template <class T>
struct AttentionJob {
  const AttentionCall<T>& call;
  int64_t batch, key_head;

  int64_t group() const { return call.query_heads / call.key_heads; }
  int64_t padded() const { return padded_head_size(call.size); }
  int64_t padded_value() const { return padded_head_size(call.value_size); }
  int64_t query_stride() const { return call.query_heads * call.size; }
  int64_t key_stride() const { return call.key_heads * call.size; }
  int64_t value_stride() const { return call.key_heads * call.value_size; }
  int64_t out_stride() const { return call.query_heads * call.value_size; }
  int64_t query_head(int64_t member) const { return key_head * group() + member; }
  int64_t query_at(int64_t member, int64_t row) const {
    return (batch * call.queries + row) * query_stride() + query_head(member) * call.size;
  }
  int64_t out_at(int64_t member, int64_t row) const {
    return (batch * call.queries + row) * out_stride() + query_head(member) * call.value_size;
  }
  int64_t key_at(int64_t row) const { return (batch * call.keys + row) * key_stride() + key_head * call.size; }
  int64_t value_at(int64_t row) const {
    return (batch * call.keys + row) * value_stride() + key_head * call.value_size;
  }
  int64_t statistic_at(int64_t member, int64_t row) const {
    return (batch * call.query_heads + query_head(member)) * call.queries + row;
  }
  /// Query `row` attends to keys [first_key(row), last_key(row)].
  int64_t last_key(int64_t row) const { return call.keys - call.queries + row; }
  int64_t first_key(int64_t row) const {
    const int64_t last = last_key(row);
    const int64_t first = call.first_keys == nullptr ? 0 : call.first_keys[batch * call.keys + last];
    return last - first < call.window ? first : last - call.window + 1;
  }
  static int64_t min(int64_t a, int64_t b) { return a < b ? a : b; }
  static int64_t rows_of(int64_t block, int64_t rows) { return min(kTile, rows - block * kTile); }
};

// The keys of a block that each of the queries [first, first + rows) sees. Rows behind these see none.
template <class T>
Band keys_of_queries(const AttentionJob<T>& job, int64_t first, int64_t rows, int64_t key_block) {
  const int64_t start = key_block * kTile;
  Band band;
  for (int64_t row = 0; row < rows; ++row) {
    band.set(row, job.first_key(first + row) - start, job.last_key(first + row) + 1 - start);
  }
  for (int64_t row = rows; row < kTile; ++row) {
    band.set(row, kTile, kTile);
  }
  return band;
}

// Sets the masked scores of row `at` to `outside`.
LEHR_INLINE void mask_row(float* row, const Band& band, int64_t at, float outside) {
  for (int64_t i = 0; i < band.first[at]; ++i) {
    row[i] = outside;
  }
  for (int64_t i = band.past[at]; i < kTile; ++i) {
    row[i] = outside;
  }
}

// Logit softcapping: scores become softcap tanh(score / softcap). `slope`, if given, gets the derivative.
LEHR_INLINE void cap_row(float* row, float softcap, float* slope) {
  for (int64_t i = 0; i < kTile; i += kLanes<float>) {
    const FloatVec bent = hyperbolic_tangent(load(row + i, All{}) / softcap);
    store(row + i, bent * softcap, All{});
    if (slope != nullptr) {
      store(slope + i, 1.0f - bent * bent, All{});
    }
  }
}

// One step of the online softmax on a row of scores: m' = max(m, max(S)), P = exp(S - m'), l' = exp(m - m') l + sum(P).
// Scores become P. Returns exp(m - m'), the factor of the output accumulated so far.
LEHR_INLINE float softmax_step(float* row, float& max, float& sum) {
  constexpr int64_t lanes = kLanes<float>;
  FloatVec high = load(row, All{});
  for (int64_t i = lanes; i < kTile; i += lanes) {
    high = maximum(high, load(row + i, All{}));
  }
  const float highest = horizontal_max<float>(high);
  const float new_max = highest > max ? highest : max;
  if (new_max == -__builtin_inff()) {  // all keys so far are masked: exp(-inf - -inf) would be NaN
    for (int64_t i = 0; i < kTile; ++i) {
      row[i] = 0;
    }
    return 1;
  }
  FloatVec total{};
  for (int64_t i = 0; i < kTile; i += lanes) {
    const FloatVec weight = exponential(load(row + i, All{}) - new_max);
    total += weight;
    store(row + i, weight, All{});
  }
  const float correction = max == new_max ? 1 : __builtin_expf(max - new_max);
  sum = sum * correction + horizontal_sum<float>(total);
  max = new_max;
  return correction;
}

// Algorithm 1 of FlashAttention-2, for the query blocks part, part + parts, ... of a job. First packs all keys and
// values of the head; then for each block of queries Q_i: O = 0, and for each block of keys K_j, V_j: S = scale Q_i
// K_j^T, online softmax, O += P V_j; finally O / l.
template <class T>
void attention_forward(const AttentionCall<T>& call, float* scratch, int64_t index, int64_t part, int64_t parts) {
  const TileRegisters registers;
  const AttentionJob<T> job{call, index / call.key_heads, index % call.key_heads};
  const int64_t padded = job.padded(), padded_value = job.padded_value();
  const int64_t tile_size = kTile * padded, value_tile_size = kTile * padded_value;
  const int64_t key_blocks = blocks_of(call.keys);
  const int64_t depth = padded / kInWord<T>, key_depth = kTile / kInWord<T>;
  float* keys_transposed = scratch;                          // K^T: (key_blocks, D, 64)
  float* values = keys_transposed + key_blocks * tile_size;  // V: (key_blocks, 64, Dv)
  float* query = values + key_blocks * value_tile_size;      // Q_i: (64, D)
  float* output = query + tile_size;                         // O_i: (64, Dv), not normalized
  float* scores = output + value_tile_size;                  // S, then P: (64, 64)
  float max[kTile], sum[kTile];                              // m_i and l_i

  for (int64_t block = 0; block < key_blocks; ++block) {
    const int64_t first = block * kTile, rows = job.rows_of(block, call.keys);
    pack_rows(call.k + job.key_at(first), job.key_stride(), rows, call.size, padded, query);
    transpose<T>(query, kTile, padded, keys_transposed + block * tile_size);
    const T* value = call.v + job.value_at(first);
    pack_rows(value, job.value_stride(), rows, call.value_size, padded_value, values + block * value_tile_size);
    words_of_rows<T>(values + block * value_tile_size, padded_value);
  }
  for (int64_t work = part; work < job.group() * blocks_of(call.queries); work += parts) {
    const int64_t member = work % job.group(), query_block = work / job.group();
    const int64_t first = query_block * kTile, rows = job.rows_of(query_block, call.queries);
    pack_rows(call.q + job.query_at(member, first), job.query_stride(), rows, call.size, padded, query);
    words_of_columns<T>(query, tile_size, query);
    for (int64_t i = 0; i < value_tile_size; ++i) {
      output[i] = 0;
    }
    // An attention sink acts as a first key whose score is the sink and whose value is zero: m = sink, l = 1, O = 0.
    for (int64_t row = 0; row < kTile; ++row) {
      max[row] = call.sinks == nullptr ? -__builtin_inff() : call.sinks[job.query_head(member)];
      sum[row] = call.sinks == nullptr ? 0 : 1;
    }
    // Blocks of keys that are masked for all 64 queries are skipped. first_key is ascending, so that of the first query
    // is the smallest.
    const int64_t last_block = job.last_key(first + rows - 1) / kTile;
    for (int64_t key_block = job.first_key(first) / kTile; key_block <= last_block; ++key_block) {
      const float* keys = keys_transposed + key_block * tile_size;
      const Band band = keys_of_queries(job, first, rows, key_block);
      multiply<false, T, Scores::in_c>(query, keys, scores, kTile, kTile, depth, &band, call.scale);
      for (int64_t row = 0; row < rows; ++row) {
        float* score = scores + row * kTile;
        if (call.softcap > 0) {
          cap_row(score, call.softcap, nullptr);
        }
        mask_row(score, band, row, -__builtin_inff());
        const float correction = softmax_step(score, max[row], sum[row]);
        if (correction != 1) {
          for (int64_t i = 0; i < padded_value; ++i) {
            output[row * padded_value + i] *= correction;
          }
        }
      }
      words_of_columns<T>(scores, kTile * kTile, scores);
      const float* value = values + key_block * value_tile_size;
      multiply<true, T, Scores::in_a>(scores, value, output, kTile, padded_value, key_depth, &band);
    }
    for (int64_t row = 0; row < rows; ++row) {
      T* out = call.out + job.out_at(member, first + row);
      unpack_rows(output + row * padded_value, padded_value, 1, call.value_size, 1 / sum[row], out, 0);
      if (call.lse != nullptr) {
        call.lse[job.statistic_at(member, first + row)] = max[row] + __builtin_logf(sum[row]);
      }
    }
  }
}

// Per-query data of backward, for a block of queries and a block of keys.
struct TileQueries {
  Band keys;
  const float* lse;          // L = m + log(l)
  const float* row_product;  // delta = rowsum(dO O), the paper's D
};

// For one key, over 64 queries: S^T becomes P^T = exp(S^T - L), and dP^T becomes dS^T = P^T (dP^T - delta).
LEHR_INLINE void backward_row(const TileQueries& queries, int64_t key, float softcap, float* score, float* gradient) {
  alignas(64) float slope[kTile];  // derivative of logit softcapping
  const auto at = static_cast<int32_t>(key);
  if (softcap > 0) {
    cap_row(score, softcap, slope);
  }
  for (int64_t i = 0; i < kTile; i += kLanes<float>) {
    const IntVec first = read<IntVec>(queries.keys.first + i, All{}), past = read<IntVec>(queries.keys.past + i, All{});
    const IntVec seen = (first <= at) & (past > at);
    const FloatVec weight = exponential(load(score + i, All{}) - load(queries.lse + i, All{}));
    FloatVec change = weight * (load(gradient + i, All{}) - load(queries.row_product + i, All{}));
    if (softcap > 0) {
      change *= load(slope + i, All{});
    }
    // Masked elements were not computed, and may be anything.
    store(score + i, seen ? weight : FloatVec{}, All{});
    store(gradient + i, seen ? change : FloatVec{}, All{});
  }
}

// Algorithm 2 of FlashAttention-2, one job. With P the softmax weights and dP = dO V^T: dV = P^T dO, dS = P (dP -
// delta) with delta = rowsum(dO O), dQ = scale dS K, dK = scale dS^T Q.
//
// Score tiles have keys as rows: S^T = K Q^T, dP^T = V dO^T and dQ^T = K^T dS^T, so that none has to be transposed. The
// outer loop is over blocks of keys, whose dK and dV stay in cache; dQ^T is accumulated for all blocks of queries. A
// sink is included in the log-sum-exp and its value is zero, so nothing else changes; its own gradient needs no tiles
// and is computed by the caller.
template <class T>
void attention_backward(const AttentionBackwardCall<T>& backward, float* scratch, int64_t index) {
  const TileRegisters registers;
  const AttentionCall<T>& call = backward.forward;
  const AttentionJob<T> job{call, index / call.key_heads, index % call.key_heads};
  const int64_t padded = job.padded(), padded_value = job.padded_value();
  const int64_t tile_size = kTile * padded, value_tile_size = kTile * padded_value, score_tile_size = kTile * kTile;
  const int64_t depth = padded / kInWord<T>, value_depth = padded_value / kInWord<T>, row_depth = kTile / kInWord<T>;
  const int64_t query_blocks = blocks_of(call.queries), tiles = job.group() * query_blocks;
  float* queries = scratch;                                                    // Q: (tiles, 64, D); last of all dQ
  float* queries_transposed = queries + tiles * tile_size;                     // Q^T: (tiles, D, 64)
  float* outgoing = queries_transposed + tiles * tile_size;                    // dO: (tiles, 64, Dv)
  float* outgoing_transposed = outgoing + tiles * value_tile_size;             // dO^T: (tiles, Dv, 64)
  float* dqueries_transposed = outgoing_transposed + tiles * value_tile_size;  // dQ^T: (tiles, D, 64)
  float* key = dqueries_transposed + tiles * tile_size;                        // K_j: (64, D)
  float* key_transposed = key + tile_size;                                     // K_j^T: (D, 64)
  float* value = key_transposed + tile_size;                                   // V_j: (64, Dv)
  float* dkey = value + value_tile_size;                                       // dK_j: (64, D)
  float* dvalue = dkey + tile_size;                                            // dV_j: (64, Dv)
  float* weights = dvalue + value_tile_size;                                   // S^T, then P^T: (64 keys, 64 queries)
  float* dscores = weights + score_tile_size;                                  // dP^T, then dS^T: the same
  float* row_lse = dscores + score_tile_size;                                  // L: (tiles, 64)
  float* row_products = row_lse + tiles * kTile;                               // delta: (tiles, 64)

  for (int64_t tile = 0; tile < tiles; ++tile) {
    const int64_t member = tile / query_blocks, first = tile % query_blocks * kTile;
    const int64_t rows = job.rows_of(tile % query_blocks, call.queries), at = job.out_at(member, first);
    float* query = queries + tile * tile_size;
    float* dout = outgoing + tile * value_tile_size;
    float* out = outgoing_transposed + tile * value_tile_size;  // O, until delta is computed
    pack_rows(call.out + at, job.out_stride(), rows, call.value_size, padded_value, out);
    pack_rows(backward.dout + at, job.out_stride(), rows, call.value_size, padded_value, dout);
    for (int64_t row = 0; row < kTile; ++row) {
      FloatVec product{};
      for (int64_t i = row * padded_value; i < (row + 1) * padded_value; i += kLanes<float>) {
        product += load(out + i, All{}) * load(dout + i, All{});
      }
      row_products[tile * kTile + row] = horizontal_sum<float>(product);
      row_lse[tile * kTile + row] = row < rows ? call.lse[job.statistic_at(member, first + row)] : 0;
    }
    pack_rows(call.q + job.query_at(member, first), job.query_stride(), rows, call.size, padded, query);
    transpose<T>(query, kTile, padded, queries_transposed + tile * tile_size);
    transpose<T>(dout, kTile, padded_value, outgoing_transposed + tile * value_tile_size);
    words_of_rows<T>(query, padded);
    words_of_rows<T>(dout, padded_value);
    for (int64_t i = 0; i < tile_size; ++i) {
      dqueries_transposed[tile * tile_size + i] = 0;
    }
  }
  for (int64_t key_block = 0; key_block < blocks_of(call.keys); ++key_block) {
    const int64_t at = job.key_at(key_block * kTile), value_at = job.value_at(key_block * kTile);
    const int64_t key_rows = job.rows_of(key_block, call.keys);
    pack_rows(call.v + value_at, job.value_stride(), key_rows, call.value_size, padded_value, value);
    words_of_columns<T>(value, value_tile_size, value);
    pack_rows(call.k + at, job.key_stride(), key_rows, call.size, padded, key);
    transpose<float>(key, kTile, padded, key_transposed);
    words_of_columns<T>(key_transposed, tile_size, key_transposed);
    words_of_columns<T>(key, tile_size, key);
    for (int64_t i = 0; i < tile_size; ++i) {
      dkey[i] = 0;
    }
    for (int64_t i = 0; i < value_tile_size; ++i) {
      dvalue[i] = 0;
    }
    for (int64_t tile = 0; tile < tiles; ++tile) {
      const int64_t first = tile % query_blocks * kTile, rows = job.rows_of(tile % query_blocks, call.queries);
      if (job.last_key(first + rows - 1) < key_block * kTile || job.first_key(first) >= (key_block + 1) * kTile) {
        continue;  // all scores of the tile are masked
      }
      const float* query = queries_transposed + tile * tile_size;
      const float* dout = outgoing_transposed + tile * value_tile_size;
      const TileQueries of_tile{
          keys_of_queries(job, first, rows, key_block), row_lse + tile * kTile, row_products + tile * kTile};
      const Band band = of_tile.keys.transposed();  // the queries that see each key
      multiply<false, T, Scores::in_c>(key, query, weights, kTile, kTile, depth, &band, call.scale);
      multiply<false, T, Scores::in_c>(value, dout, dscores, kTile, kTile, value_depth, &band);
      for (int64_t row = 0; row < kTile; ++row) {
        backward_row(of_tile, row, call.softcap, weights + row * kTile, dscores + row * kTile);
      }
      query = queries + tile * tile_size;
      dout = outgoing + tile * value_tile_size;
      words_of_columns<T>(weights, score_tile_size, weights);
      // dV += P^T dO
      multiply<true, T, Scores::in_a>(weights, dout, dvalue, kTile, padded_value, row_depth, &band);
      const float* dscores_by_row = words_of_columns<T>(dscores, score_tile_size, weights);
      // dK += dS^T Q
      multiply<true, T, Scores::in_a>(dscores_by_row, query, dkey, kTile, padded, row_depth, &band);
      words_of_rows<T>(dscores, kTile);
      float* dquery = dqueries_transposed + tile * tile_size;
      // dQ^T += K^T dS^T
      multiply<true, T, Scores::in_b>(key_transposed, dscores, dquery, padded, kTile, row_depth, &of_tile.keys);
    }
    unpack_rows(dkey, padded, key_rows, call.size, call.scale, backward.dk + at, job.key_stride());
    unpack_rows(dvalue, padded_value, key_rows, call.value_size, 1, backward.dv + value_at, job.value_stride());
  }
  for (int64_t tile = 0; tile < tiles; ++tile) {
    const int64_t member = tile / query_blocks, first = tile % query_blocks * kTile;
    const int64_t rows = job.rows_of(tile % query_blocks, call.queries);
    float* dquery = queries + tile * tile_size;
    transpose<float>(dqueries_transposed + tile * tile_size, padded, kTile, dquery);
    T* to = backward.dq + job.query_at(member, first);
    unpack_rows(dquery, padded, rows, call.size, call.scale, to, job.query_stride());
  }
}

template <class T>
constexpr AttentionKernels<T> kAttention = {.forward = attention_forward<T>, .backward = attention_backward<T>};

}  // namespace

LEHR_KERNELS(kAttention<float>)
LEHR_KERNELS(kAttention<Bf16>)
LEHR_PAIR_KERNELS(kAttention<Bf16>)

}  // namespace lehr::ops::LEHR_ARCH
