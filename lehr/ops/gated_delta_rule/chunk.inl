// One chunk of the gated delta rule: its keys, decays and corrections, and the state after it.
//
// Within a chunk, with rows k_t, b_t the sum of decays up to t, E = exp(b), G_tj = exp(b_t - b_j) and the state S
// before it, the corrections D solve a unit lower triangular system:
//
//     (I + tril(beta k k^T * G, -1)) D = beta (value - E k S)
//     output = E q S + tril(q k^T * G) D
//     S     <- E_last S + k^T (F D), with F_j = exp(b_last - b_j)
//
// Without corrections (StateUpdate::add), D = beta value, and queries and keys are not normalized: no system, no k k^T.
//
// Rows are padded with zeros to a multiple of 8, heads to padded_delta_size: then products have no edges, and padding
// has no effect, because its keys and corrections are zero.
#pragma once

#include "lehr/ops/gated_delta_rule/product.inl"

namespace lehr::ops::LEHR_ARCH {
namespace {

// Hands out scratch memory.
template <class A>
struct DeltaScratch {
  A* next;
  A* take(int64_t count) {
    A* const taken = next;
    next += count;
    return taken;
  }
};

// Normalized queries and keys of a key head, (rows, padded), and their products, (rows, kDeltaChunk).
template <class A>
struct DeltaKeys {
  int64_t rows = 0;
  A *query, *key, *key_t;    // key_t is (padded, kDeltaChunk)
  A *qk, *kk;                // lower triangles
  A *query_norm, *key_norm;  // what the inputs were multiplied by

  DeltaKeys(DeltaScratch<A>& scratch, int64_t padded)
      : query(scratch.take(kDeltaChunk * padded)),
        key(scratch.take(kDeltaChunk * padded)),
        key_t(scratch.take(kDeltaChunk * padded)),
        qk(scratch.take(kDeltaChunk * kDeltaChunk)),
        kk(scratch.take(kDeltaChunk * kDeltaChunk)),
        query_norm(scratch.take(kDeltaChunk)),
        key_norm(scratch.take(kDeltaChunk)) {}
};

// What a value head adds: decays, and corrections (rows, padded_value).
template <class A>
struct DeltaValues {
  A *sum, *from_begin, *to_end, *beta;  // b, E, F, beta
  A *decay, *solve, *mix;               // G, minus the triangle of the system, tril(q k^T * G): (rows, kDeltaChunk)
  A *held, *wanted, *correction;        // k S, value - E k S, D
  A whole = 0;                          // E_last

  DeltaValues(DeltaScratch<A>& scratch, int64_t padded_value)
      : sum(scratch.take(kDeltaChunk)),
        from_begin(scratch.take(kDeltaChunk)),
        to_end(scratch.take(kDeltaChunk)),
        beta(scratch.take(kDeltaChunk)),
        decay(scratch.take(kDeltaChunk * kDeltaChunk)),
        solve(scratch.take(kDeltaChunk * kDeltaChunk)),
        mix(scratch.take(kDeltaChunk * kDeltaChunk)),
        held(scratch.take(kDeltaChunk * padded_value)),
        wanted(scratch.take(kDeltaChunk * padded_value)),
        correction(scratch.take(kDeltaChunk * padded_value)) {}
};

// Copies `count` rows of `size` elements, `stride` apart, times `factor`, into rows of `padded`; zeros elsewhere.
template <class T>
void delta_load_rows(
    const T* from, int64_t stride, int64_t count, int64_t size, Wide<T>* to, int64_t rows, int64_t padded) {
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t i = 0; i < padded; i += kLanes<T>) {
      store(to + row * padded + i, Vec<T>{}, All{});
    }
    if (row < count) {
      for_each_vector<T>(
          size, [&](int64_t i, auto part) __attribute__((always_inline)) {
            store(to + row * padded + i, load(from + row * stride + i, part), part);
          });
    }
  }
}

// Scales each row to length `length`, and keeps 1 / norm.
template <class A>
void delta_normalize_rows(A* x, int64_t rows, int64_t padded, A length, A* norm) {
  for (int64_t row = 0; row < rows; ++row) {
    Vec<A> squares{};
    for (int64_t i = 0; i < padded; i += kLanes<A>) {
      const Vec<A> v = load(x + row * padded + i, All{});
      squares += v * v;
    }
    norm[row] = 1 / square_root(horizontal_sum<A>(squares) + static_cast<A>(1e-6));
    for (int64_t i = 0; i < padded; i += kLanes<A>) {
      store(x + row * padded + i, load(x + row * padded + i, All{}) * (norm[row] * length), All{});
    }
  }
}

template <class A>
void multiply_by_keys(const DeltaKeys<A>& keys, const A* left, int64_t padded, A* result) {
  delta_product<A>(
      {.a = left,
       .a_row = padded,
       .a_column = 1,
       .b = keys.key_t,
       .b_stride = kDeltaChunk,
       .c = result,
       .c_stride = kDeltaChunk,
       .rows = keys.rows,
       .columns = kDeltaChunk,
       .depth = padded,
       .lower_result = true});
}

template <class T>
void load_keys(const DeltaCall<T>& call, const DeltaChunk& chunk, int64_t row, int64_t head, DeltaKeys<Wide<T>>& keys) {
  using A = Wide<T>;
  const int64_t padded = call.padded(), stride = call.key_heads * call.size;
  const int64_t at = ((row * call.tokens + chunk.first) * call.key_heads + head) * call.size;
  keys.rows = (chunk.count + 7) / 8 * 8;
  delta_load_rows(call.query + at, stride, chunk.count, call.size, keys.query, keys.rows, padded);
  delta_load_rows(call.key + at, stride, chunk.count, call.size, keys.key, keys.rows, padded);
  if (call.corrects) {
    delta_normalize_rows(keys.query, keys.rows, padded, 1 / square_root(static_cast<A>(call.size)), keys.query_norm);
    delta_normalize_rows(keys.key, keys.rows, padded, A{1}, keys.key_norm);
  }
  delta_transpose(keys.key, keys.rows, padded, keys.key_t, kDeltaChunk);
  multiply_by_keys(keys, keys.query, padded, keys.qk);
  if (call.corrects) {
    multiply_by_keys(keys, keys.key, padded, keys.kk);
  }
}

// Computes decays, the triangle of the system, and the weights of corrections in outputs.
template <class T>
void load_decays(
    const DeltaCall<T>& call,
    const DeltaChunk& chunk,
    int64_t row,
    int64_t head,
    const DeltaKeys<Wide<T>>& keys,
    DeltaValues<Wide<T>>& values) {
  using A = Wide<T>;
  constexpr int64_t lanes = kLanes<A>;
  const int64_t at = (row * call.tokens + chunk.first) * call.value_heads() + head;
  A sum = 0;
  for (int64_t i = 0; i < kDeltaChunk; ++i) {
    const bool exists = i < chunk.count;
    sum += exists ? call.decay[at + i * call.value_heads()] : 0;
    values.sum[i] = sum;
    values.beta[i] = exists ? call.beta[at + i * call.value_heads()] : 0;
  }
  for (int64_t i = 0; i < kDeltaChunk; i += lanes) {
    const Vec<A> b = load(values.sum + i, All{});
    store(values.from_begin + i, exponential(b), All{});
    store(values.to_end + i, exponential(sum - b), All{});
  }
  values.whole = values.from_begin[kDeltaChunk - 1];
  for (int64_t i = 0; i < keys.rows; ++i) {
    A* const decay = values.decay + i * kDeltaChunk;
    A* const solve = values.solve + i * kDeltaChunk;
    A* const mix = values.mix + i * kDeltaChunk;
    for (int64_t j = 0; j < kDeltaChunk; j += lanes) {
      store(decay + j, j <= i ? exponential(values.sum[i] - load(values.sum + j, All{})) : Vec<A>{}, All{});
    }
    for (int64_t j = i + 1; j < kDeltaChunk && j < i + lanes; ++j) {
      decay[j] = 0;
    }
    // Products after the diagonal are undefined, and may be NaN: only the columns that exist are read.
    for (int64_t j = 0; j < kDeltaChunk; ++j) {
      mix[j] = j <= i ? keys.qk[i * kDeltaChunk + j] * decay[j] : 0;
    }
    for (int64_t j = 0; call.corrects && j < kDeltaChunk; ++j) {
      solve[j] = j < i ? -values.beta[i] * keys.kk[i * kDeltaChunk + j] * decay[j] : 0;
    }
  }
}

// result = left S, for left (rows, padded) and the state S (padded, padded_value).
template <class T>
void read_state(const DeltaCall<T>& call, int64_t rows, const Wide<T>* left, const Wide<T>* state, Wide<T>* result) {
  delta_product<Wide<T>>(
      {.a = left,
       .a_row = call.padded(),
       .a_column = 1,
       .b = state,
       .b_stride = call.padded_value(),
       .c = result,
       .c_stride = call.padded_value(),
       .rows = rows,
       .columns = call.padded_value(),
       .depth = call.size});
}

// Computes D: the corrections of the chunk's tokens, or beta value without corrections.
template <class T>
void correct(
    const DeltaCall<T>& call,
    const DeltaChunk& chunk,
    int64_t row,
    int64_t head,
    const DeltaKeys<Wide<T>>& keys,
    const Wide<T>* state,
    DeltaValues<Wide<T>>& values) {
  const int64_t width = call.padded_value(), stride = call.value_heads() * call.value_size;
  const T* value = call.value + ((row * call.tokens + chunk.first) * call.value_heads() + head) * call.value_size;
  load_decays(call, chunk, row, head, keys, values);
  if (call.corrects) {
    read_state(call, keys.rows, keys.key, state, values.held);
  }
  delta_load_rows(value, stride, chunk.count, call.value_size, values.wanted, keys.rows, width);
  for (int64_t i = 0; i < keys.rows; ++i) {
    for (int64_t j = i * width; j < (i + 1) * width; j += kLanes<T>) {
      Vec<T> wanted = load(values.wanted + j, All{});
      if (call.corrects) {
        wanted -= load(values.held + j, All{}) * values.from_begin[i];
        store(values.wanted + j, wanted, All{});
      }
      store(values.correction + j, wanted * values.beta[i], All{});
    }
  }
  if (call.corrects) {
    delta_solve<false>(values.solve, values.correction, keys.rows, width);
  }
}

template <class A>
void scale_rows(const A* factors, int64_t rows, int64_t width, A* x) {
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = i * width; j < (i + 1) * width; j += kLanes<A>) {
      store(x + j, load(x + j, All{}) * factors[i], All{});
    }
  }
}

// Writes rows (padded_value) of a value head to a tensor (batch, tokens, value_heads, value_size).
template <class T>
void store_values(
    const DeltaCall<T>& call, const DeltaChunk& chunk, int64_t row, int64_t head, const Wide<T>* from, T* to) {
  T* const first = to + ((row * call.tokens + chunk.first) * call.value_heads() + head) * call.value_size;
  for (int64_t i = 0; i < chunk.count; ++i) {
    for_each_vector<T>(
        call.value_size, [&](int64_t j, auto count) __attribute__((always_inline)) {
          store(
              first + i * call.value_heads() * call.value_size + j,
              load(from + i * call.padded_value() + j, count),
              count);
        });
  }
}

// next = E_last state + k^T (F D); the two may be one. `scaled` (rows, padded_value) gets F D.
template <class T>
void advance(
    const DeltaCall<T>& call,
    const DeltaKeys<Wide<T>>& keys,
    const DeltaValues<Wide<T>>& values,
    Wide<T>* scaled,
    const Wide<T>* state,
    Wide<T>* next) {
  const int64_t width = call.padded_value();
  for (int64_t i = 0; i < keys.rows; ++i) {
    for (int64_t j = i * width; j < (i + 1) * width; j += kLanes<T>) {
      store(scaled + j, load(values.correction + j, All{}) * values.to_end[i], All{});
    }
  }
  delta_product<Wide<T>>(
      {.a = keys.key_t,
       .a_row = kDeltaChunk,
       .a_column = 1,
       .b = scaled,
       .b_stride = width,
       .c = next,
       .c_stride = width,
       .rows = call.padded(),
       .columns = width,
       .depth = keys.rows,
       .keep = values.whole,
       .from = state});
}

// The state that a row begins with; null for zero, and in its other sequences.
template <class T>
const Wide<T>* initial_state(const DeltaCall<T>& call, int64_t row, int64_t head, const DeltaChunk& chunk) {
  const int64_t at = (row * call.value_heads() + head) * call.size * call.value_size;
  return chunk.first == 0 && call.initial != nullptr ? call.initial + at : nullptr;
}

// Sets the state (padded, padded_value) to (size, value_size) elements; zero if `from` is null.
template <class T>
void load_state(const DeltaCall<T>& call, const Wide<T>* from, Wide<T>* state) {
  const int64_t count = from != nullptr ? call.size : 0;
  delta_load_rows(from, call.value_size, count, call.value_size, state, call.padded(), call.padded_value());
}
template <class T>
void store_state(const DeltaCall<T>& call, const Wide<T>* state, Wide<T>* to) {
  for (int64_t i = 0; i < call.size; ++i) {
    for (int64_t j = 0; j < call.value_size; ++j) {
      to[i * call.value_size + j] = state[i * call.padded_value() + j];
    }
  }
}

}  // namespace
}  // namespace lehr::ops::LEHR_ARCH
