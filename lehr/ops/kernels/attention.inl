// Causal attention on 64 x 64 tiles of scores, forward and backward (Dao, "FlashAttention-2",
// https://arxiv.org/abs/2307.08691). One job is one key/value head with the query heads that share it.

#include "lehr/ops/kernels/attention_tile.inl"

// Where things stand for one key/value head of one batch row.
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
  /// Query `row` sees keys [first_key(row), last_key(row)].
  int64_t last_key(int64_t row) const { return call.keys - call.queries + row; }
  int64_t first_key(int64_t row) const {
    const int64_t last = last_key(row);
    const int64_t first = call.first_keys == nullptr ? 0 : call.first_keys[batch * call.keys + last];
    return last - first < call.window ? first : last - call.window + 1;
  }
  static int64_t min(int64_t a, int64_t b) { return a < b ? a : b; }
  static int64_t rows_of(int64_t block, int64_t rows) { return min(kTile, rows - block * kTile); }
};

// Columns [first, last) of a tile's row that its query sees.
struct Columns {
  int64_t first, last;
};
template <class T>
Columns columns_of(const AttentionJob<T>& job, int64_t query, int64_t key_block) {
  const int64_t start = key_block * kTile;
  const int64_t first = job.first_key(query) - start;
  const int64_t last = job.last_key(query) + 1 - start;
  return {first < 0 ? 0 : first, last < 0 ? 0 : (last < kTile ? last : kTile)};
}

// Puts `outside` where a query does not see a key.
LEHR_INLINE void mask_row(float* row, Columns columns, float outside) {
  for (int64_t i = 0; i < (columns.first < kTile ? columns.first : kTile); ++i) {
    row[i] = outside;
  }
  for (int64_t i = columns.last; i < kTile; ++i) {
    row[i] = outside;
  }
}

// Scores become softcap tanh(score / softcap); `slope`, if given, gets the derivative.
LEHR_INLINE void cap_row(float* row, float softcap, float* slope) {
  for (int64_t i = 0; i < kTile; i += kLanes<float>) {
    const FloatVec bent = hyperbolic_tangent(load(row + i, All{}) / softcap);
    store(row + i, bent * softcap, All{});
    if (slope != nullptr) {
      store(slope + i, 1.0f - bent * bent, All{});
    }
  }
}

// One step of the running softmax on a row of scores: scores become weights relative to the new maximum. Returns what
// earlier sums must be multiplied with.
LEHR_INLINE float softmax_step(float* row, float& max, float& sum) {
  constexpr int64_t lanes = kLanes<float>;
  FloatVec high = load(row, All{});
  for (int64_t i = lanes; i < kTile; i += lanes) {
    high = maximum(high, load(row + i, All{}));
  }
  const float highest = horizontal_max<float>(high);
  const float new_max = highest > max ? highest : max;
  if (new_max == -__builtin_inff()) {  // nothing seen so far
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

// Query blocks part, part + parts, ... of a job.
template <class T>
void attention_forward(const AttentionCall<T>& call, float* scratch, int64_t index, int64_t part, int64_t parts) {
  const AttentionJob<T> job{call, index / call.key_heads, index % call.key_heads};
  const int64_t padded = job.padded(), padded_value = job.padded_value();
  const int64_t tile_size = kTile * padded, value_tile_size = kTile * padded_value;
  const int64_t key_blocks = blocks_of(call.keys);
  float* keys_transposed = scratch;
  float* values = keys_transposed + key_blocks * tile_size;
  float* query = values + key_blocks * value_tile_size;
  float* query_transposed = query + tile_size;
  float* output = query_transposed + tile_size;
  float* scores = output + value_tile_size;
  float max[kTile], sum[kTile];

  for (int64_t block = 0; block < key_blocks; ++block) {
    const int64_t first = block * kTile, rows = job.rows_of(block, call.keys);
    pack_rows(call.k + job.key_at(first), job.key_stride(), rows, call.size, padded, query);
    transpose_rows<T>(query, padded, keys_transposed + block * tile_size);
    const T* value = call.v + job.value_at(first);
    pack_rows(value, job.value_stride(), rows, call.value_size, padded_value, values + block * value_tile_size);
    words_of_rows<T>(values + block * value_tile_size, padded_value);
  }
  for (int64_t work = part; work < job.group() * blocks_of(call.queries); work += parts) {
    const int64_t member = work % job.group(), query_block = work / job.group();
    const int64_t first = query_block * kTile, rows = job.rows_of(query_block, call.queries);
    pack_rows(call.q + job.query_at(member, first), job.query_stride(), rows, call.size, padded, query);
    transpose_rows<T>(query, padded, query_transposed);
    for (int64_t i = 0; i < value_tile_size; ++i) {
      output[i] = 0;
    }
    for (int64_t row = 0; row < kTile; ++row) {  // the sink is the first that is seen, and its value is zero
      max[row] = call.sinks == nullptr ? -__builtin_inff() : call.sinks[job.query_head(member)];
      sum[row] = call.sinks == nullptr ? 0 : 1;
    }
    const int64_t last_block = job.last_key(first + rows - 1) / kTile;
    for (int64_t key_block = job.first_key(first) / kTile; key_block <= last_block; ++key_block) {
      const float* keys = keys_transposed + key_block * tile_size;
      multiply_transposed<T>(query_transposed, keys, scores, padded, call.scale);
      for (int64_t row = 0; row < rows; ++row) {
        float* score = scores + row * kTile;
        if (call.softcap > 0) {
          cap_row(score, call.softcap, nullptr);
        }
        mask_row(score, columns_of(job, first + row, key_block), -__builtin_inff());
        const float correction = softmax_step(score, max[row], sum[row]);
        if (correction != 1) {
          for (int64_t i = 0; i < padded_value; ++i) {
            output[row * padded_value + i] *= correction;
          }
        }
      }
      words_of_columns<T>(scores, scores);
      add_product<T>(scores, values + key_block * value_tile_size, padded_value, output);
    }
    for (int64_t row = 0; row < rows; ++row) {
      T* out = call.out + job.out_at(member, first + row);
      unpack_rows(output + row * padded_value, padded_value, 1, call.value_size, 1 / sum[row], out, 0);
      if (call.log_sum != nullptr) {
        call.log_sum[job.statistic_at(member, first + row)] = max[row] + __builtin_logf(sum[row]);
      }
    }
  }
}

// With P the weights and dP = dO V^T: dV = P^T dO, dS = P (dP - rowsum(dO O)), dQ = scale dS K, dK = scale dS^T Q. A
// sink is in the log-sums, and its value is zero, so nothing else changes; its own gradient needs no tiles and is the
// caller's.
template <class T>
void attention_backward(const AttentionBackwardCall<T>& backward, float* scratch, int64_t index) {
  const AttentionCall<T>& call = backward.forward;
  const AttentionJob<T> job{call, index / call.key_heads, index % call.key_heads};
  const int64_t padded = job.padded(), padded_value = job.padded_value();
  const int64_t tile_size = kTile * padded, value_tile_size = kTile * padded_value;
  const int64_t query_blocks = blocks_of(call.queries), tiles = job.group() * query_blocks;
  float* queries = scratch;
  float* queries_transposed = queries + tiles * tile_size;
  float* outgoing = queries_transposed + tiles * tile_size;
  float* outgoing_transposed = outgoing + tiles * value_tile_size;
  float* dqueries = outgoing_transposed + tiles * value_tile_size;
  float* key = dqueries + tiles * tile_size;
  float* key_transposed = key + tile_size;
  float* value_transposed = key_transposed + tile_size;
  float* dkey = value_transposed + value_tile_size;
  float* dvalue = dkey + tile_size;
  float* weights = dvalue + value_tile_size;
  float* dscores = weights + kTile * kTile;
  float* row_products = dscores + kTile * kTile;  // rowsum(dO O), (group, queries)
  alignas(64) float slope[kTile] = {};            // of the capped scores

  for (int64_t tile = 0; tile < tiles; ++tile) {
    const int64_t member = tile / query_blocks, first = tile % query_blocks * kTile;
    const int64_t rows = job.rows_of(tile % query_blocks, call.queries), at = job.out_at(member, first);
    float* query = queries + tile * tile_size;
    float* dout = outgoing + tile * value_tile_size;
    float* out = outgoing_transposed + tile * value_tile_size;  // until the products are made
    pack_rows(call.out + at, job.out_stride(), rows, call.value_size, padded_value, out);
    pack_rows(backward.dout + at, job.out_stride(), rows, call.value_size, padded_value, dout);
    for (int64_t row = 0; row < rows; ++row) {
      FloatVec product{};
      for (int64_t i = row * padded_value; i < (row + 1) * padded_value; i += kLanes<float>) {
        product += load(out + i, All{}) * load(dout + i, All{});
      }
      row_products[member * call.queries + first + row] = horizontal_sum<float>(product);
    }
    pack_rows(call.q + job.query_at(member, first), job.query_stride(), rows, call.size, padded, query);
    transpose_rows<T>(query, padded, queries_transposed + tile * tile_size);
    transpose_rows<T>(dout, padded_value, outgoing_transposed + tile * value_tile_size);
    words_of_rows<T>(query, padded);
    words_of_rows<T>(dout, padded_value);
    for (int64_t i = 0; i < tile_size; ++i) {
      dqueries[tile * tile_size + i] = 0;
    }
  }
  for (int64_t key_block = 0; key_block < blocks_of(call.keys); ++key_block) {
    const int64_t at = job.key_at(key_block * kTile), value_at = job.value_at(key_block * kTile);
    const int64_t key_rows = job.rows_of(key_block, call.keys);
    pack_rows(call.v + value_at, job.value_stride(), key_rows, call.value_size, padded_value, dvalue);
    transpose_rows<T>(dvalue, padded_value, value_transposed);
    pack_rows(call.k + at, job.key_stride(), key_rows, call.size, padded, key);
    transpose_rows<T>(key, padded, key_transposed);
    words_of_rows<T>(key, padded);
    for (int64_t i = 0; i < tile_size; ++i) {
      dkey[i] = 0;
    }
    for (int64_t i = 0; i < value_tile_size; ++i) {
      dvalue[i] = 0;
    }
    for (int64_t tile = 0; tile < tiles; ++tile) {
      const int64_t member = tile / query_blocks, first = tile % query_blocks * kTile;
      const int64_t rows = job.rows_of(tile % query_blocks, call.queries);
      if (job.last_key(first + rows - 1) < key_block * kTile || job.first_key(first) >= (key_block + 1) * kTile) {
        continue;
      }
      const float* query = queries + tile * tile_size;
      const float* dout = outgoing + tile * value_tile_size;
      multiply_transposed<T>(queries_transposed + tile * tile_size, key_transposed, weights, padded, call.scale);
      const float* dout_transposed = outgoing_transposed + tile * value_tile_size;
      multiply_transposed<T>(dout_transposed, value_transposed, dscores, padded_value, 1);
      for (int64_t row = 0; row < kTile; ++row) {
        float* weight = weights + row * kTile;
        float* dscore = dscores + row * kTile;
        const bool real = row < rows;
        const float log_sum = real ? call.log_sum[job.statistic_at(member, first + row)] : 0;
        const float product = real ? row_products[member * call.queries + first + row] : 0;
        if (call.softcap > 0) {
          cap_row(weight, call.softcap, slope);
        }
        mask_row(weight, real ? columns_of(job, first + row, key_block) : Columns{0, 0}, -__builtin_inff());
        for (int64_t i = 0; i < kTile; i += kLanes<float>) {
          const FloatVec p = exponential(load(weight + i, All{}) - log_sum);
          store(weight + i, p, All{});
          store(dscore + i, p * (load(dscore + i, All{}) - product), All{});
        }
        for (int64_t i = 0; call.softcap > 0 && i < kTile; i += kLanes<float>) {
          store(dscore + i, load(dscore + i, All{}) * load(slope + i, All{}), All{});
        }
      }
      words_of_rows<T>(weights, kTile);
      add_transposed_product<T>(weights, dout, padded_value, dvalue);
      float* dscores_by_row = kInWord<T> == 1 ? dscores : weights;
      words_of_columns<T>(dscores, dscores_by_row);
      words_of_rows<T>(dscores, kTile);
      add_transposed_product<T>(dscores, query, padded, dkey);
      add_product<T>(dscores_by_row, key, padded, dqueries + tile * tile_size);
    }
    unpack_rows(dkey, padded, key_rows, call.size, call.scale, backward.dk + at, job.key_stride());
    unpack_rows(dvalue, padded_value, key_rows, call.value_size, 1, backward.dv + value_at, job.value_stride());
  }
  for (int64_t tile = 0; tile < tiles; ++tile) {
    const int64_t member = tile / query_blocks, first = tile % query_blocks * kTile;
    unpack_rows(
        dqueries + tile * tile_size,
        padded,
        job.rows_of(tile % query_blocks, call.queries),
        call.size,
        call.scale,
        backward.dq + job.query_at(member, first),
        job.query_stride());
  }
}
