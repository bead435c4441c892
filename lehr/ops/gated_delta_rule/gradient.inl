// Backward of one chunk of the gated delta rule, by the equations of chunk.inl in reverse.
#pragma once

#include "lehr/ops/gated_delta_rule/chunk.inl"

namespace lehr::ops::LEHR_ARCH {
namespace {

template <class A>
void clear(A* x, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    x[i] = 0;
  }
}

template <class A>
struct DeltaGradients {
  A *query, *key;          // of the normalized rows, (rows, padded), summed over value heads
  A *output, *correction;  // (rows, padded_value); the latter becomes that of the system's right side
  A *read, *held;          // of q S and k S, (rows, padded_value)
  A* correction_t;         // D itself, (padded_value, kDeltaChunk)
  A *mix, *solve;          // (rows, kDeltaChunk)
  A *sum, *from_begin, *to_end, *beta;
  A* turned;  // a state, transposed

  DeltaGradients(DeltaScratch<A>& scratch, int64_t padded, int64_t padded_value)
      : query(scratch.take(kDeltaChunk * padded)),
        key(scratch.take(kDeltaChunk * padded)),
        output(scratch.take(kDeltaChunk * padded_value)),
        correction(scratch.take(kDeltaChunk * padded_value)),
        read(scratch.take(kDeltaChunk * padded_value)),
        held(scratch.take(kDeltaChunk * padded_value)),
        correction_t(scratch.take(kDeltaChunk * padded_value)),
        mix(scratch.take(kDeltaChunk * kDeltaChunk)),
        solve(scratch.take(kDeltaChunk * kDeltaChunk)),
        sum(scratch.take(kDeltaChunk)),
        from_begin(scratch.take(kDeltaChunk)),
        to_end(scratch.take(kDeltaChunk)),
        beta(scratch.take(kDeltaChunk)),
        turned(scratch.take(padded * padded_value)) {}
};

// Returns the sum of x y over `count` elements, a multiple of the lanes.
template <class A>
LEHR_INLINE A dot(const A* x, const A* y, int64_t count) {
  Vec<A> sum{};
  for (int64_t i = 0; i < count; i += kLanes<A>) {
    sum += load(x + i, All{}) * load(y + i, All{});
  }
  return horizontal_sum<A>(sum);
}

// Gradients of the corrections from the output and from the next state, and through the system: leaves that of its
// right side in gradients.correction. Also those of to_end, and of the products' triangles (mix, solve).
template <class T>
void correction_backward(
    const DeltaCall<T>& call,
    const DeltaKeys<Wide<T>>& keys,
    const DeltaValues<Wide<T>>& values,
    const Wide<T>* dstate,
    DeltaGradients<Wide<T>>& gradients) {
  using A = Wide<T>;
  const int64_t width = call.padded_value(), rows = keys.rows;
  read_state(call, rows, keys.key, dstate, gradients.correction);
  for (int64_t i = 0; i < rows; ++i) {
    gradients.to_end[i] = dot(values.correction + i * width, gradients.correction + i * width, width);
  }
  scale_rows(values.to_end, rows, width, gradients.correction);
  delta_product<A>(
      {.a = values.mix,
       .a_row = 1,
       .a_column = kDeltaChunk,
       .b = gradients.output,
       .b_stride = width,
       .c = gradients.correction,
       .c_stride = width,
       .rows = rows,
       .columns = width,
       .depth = rows,
       .part = DeltaPart::upper,
       .keep = 1,
       .from = gradients.correction});
  if (call.corrects) {
    delta_solve<true>(values.solve, gradients.correction, rows, width);
  }
  delta_transpose(values.correction, rows, width, gradients.correction_t, kDeltaChunk);
  const auto by_corrections = [&](const A* left, A* triangle) {
    delta_product<A>(
        {.a = left,
         .a_row = width,
         .a_column = 1,
         .b = gradients.correction_t,
         .b_stride = kDeltaChunk,
         .c = triangle,
         .c_stride = kDeltaChunk,
         .rows = rows,
         .columns = kDeltaChunk,
         .depth = width,
         .lower_result = true});
  };
  by_corrections(gradients.output, gradients.mix);
  if (call.corrects) {
    by_corrections(gradients.correction, gradients.solve);
  }
}

// Gradients of the right side, beta (value - E k S), and of E q S: leaves that of k S in gradients.held and that of q S
// in gradients.read, and writes dvalue.
template <class T>
void reads_backward(
    const DeltaBackwardCall<T>& call,
    const DeltaChunk& chunk,
    int64_t row,
    int64_t head,
    const DeltaKeys<Wide<T>>& keys,
    const DeltaValues<Wide<T>>& values,
    const Wide<T>* state,
    DeltaGradients<Wide<T>>& gradients) {
  using A = Wide<T>;
  const int64_t width = call.forward.padded_value();
  read_state(call.forward, keys.rows, keys.query, state, gradients.read);
  for (int64_t i = 0; i < keys.rows; ++i) {
    const A begin = values.from_begin[i], beta = values.beta[i];
    A* const dright = gradients.correction + i * width;
    gradients.beta[i] = dot(dright, values.wanted + i * width, width);
    gradients.from_begin[i] = dot(gradients.output + i * width, gradients.read + i * width, width);
    if (call.forward.corrects) {
      gradients.from_begin[i] -= beta * dot(dright, values.held + i * width, width);
    }
    for (int64_t j = 0; j < width; j += kLanes<A>) {
      const Vec<A> dwanted = load(dright + j, All{}) * beta;
      store(dright + j, dwanted, All{});
      if (call.forward.corrects) {
        store(gradients.held + i * width + j, dwanted * -begin, All{});
      }
      store(gradients.read + i * width + j, load(gradients.output + i * width + j, All{}) * begin, All{});
    }
  }
  store_values(call.forward, chunk, row, head, gradients.correction, call.dvalue);
}

// Adds left right^T to a gradient of keys or queries, where `turned` is right^T, a transposed state.
template <class T>
void add_through_state(
    const DeltaCall<T>& call, int64_t rows, const Wide<T>* left, const Wide<T>* turned, Wide<T>* gradient) {
  delta_product<Wide<T>>(
      {.a = left,
       .a_row = call.padded_value(),
       .a_column = 1,
       .b = turned,
       .b_stride = call.padded(),
       .c = gradient,
       .c_stride = call.padded(),
       .rows = rows,
       .columns = call.padded(),
       .depth = call.value_size,
       .keep = 1,
       .from = gradient});
}

// Adds triangle x, or its transpose, to a gradient of keys or queries.
template <class T>
void add_through_products(
    const DeltaCall<T>& call, int64_t rows, const Wide<T>* triangle, bool turned, const Wide<T>* x, Wide<T>* gradient) {
  delta_product<Wide<T>>(
      {.a = triangle,
       .a_row = turned ? 1 : kDeltaChunk,
       .a_column = turned ? kDeltaChunk : 1,
       .b = x,
       .b_stride = call.padded(),
       .c = gradient,
       .c_stride = call.padded(),
       .rows = rows,
       .columns = call.padded(),
       .depth = rows,
       .part = turned ? DeltaPart::upper : DeltaPart::lower,
       .keep = 1,
       .from = gradient});
}

// Gradients of the state before the chunk, and through both states of queries and keys.
template <class T>
void state_backward(
    const DeltaCall<T>& call,
    const DeltaKeys<Wide<T>>& keys,
    const DeltaValues<Wide<T>>& values,
    const Wide<T>* state,
    Wide<T>* dstate,
    DeltaGradients<Wide<T>>& gradients) {
  using A = Wide<T>;
  const int64_t width = call.padded_value(), padded = call.padded(), rows = keys.rows;
  delta_transpose(dstate, padded, width, gradients.turned, padded);
  scale_rows(values.to_end, rows, width, values.correction);  // F D, their last use
  add_through_state(call, rows, values.correction, gradients.turned, gradients.key);
  delta_transpose(state, padded, width, gradients.turned, padded);
  if (call.corrects) {
    add_through_state(call, rows, gradients.held, gradients.turned, gradients.key);
  }
  add_through_state(call, rows, gradients.read, gradients.turned, gradients.query);
  const auto add_to_state = [&](const A* left, const A* right, A keep) {
    delta_product<A>(
        {.a = left,
         .a_row = 1,
         .a_column = padded,
         .b = right,
         .b_stride = width,
         .c = dstate,
         .c_stride = width,
         .rows = padded,
         .columns = width,
         .depth = rows,
         .keep = keep,
         .from = dstate});
  };
  if (call.corrects) {
    add_to_state(keys.key, gradients.held, values.whole);
  }
  add_to_state(keys.query, gradients.read, call.corrects ? 1 : values.whole);
}

// Turns the gradients of the triangles into those of q k^T and k k^T, and adds what decays and beta get through them.
template <class T>
void triangles_backward(
    const DeltaCall<T>& call,
    const DeltaKeys<Wide<T>>& keys,
    const DeltaValues<Wide<T>>& values,
    DeltaGradients<Wide<T>>& gradients) {
  using A = Wide<T>;
  for (int64_t i = 0; i < keys.rows; ++i) {
    for (int64_t j = 0; j < kDeltaChunk; ++j) {
      const int64_t at = i * kDeltaChunk + j;
      if (j > i) {
        gradients.mix[at] = gradients.solve[at] = 0;
        continue;
      }
      if (j == i) {
        gradients.solve[at] = 0;  // a token's own product does not decay
        continue;
      }
      // `solve` is minus the triangle of the system: D = right side + solve D.
      const A of_system = call.corrects ? gradients.solve[at] * values.solve[at] : 0;
      const A through_decay = gradients.mix[at] * values.mix[at] + of_system;
      gradients.sum[i] += through_decay;
      gradients.sum[j] -= through_decay;
      gradients.mix[at] *= values.decay[at];
      if (call.corrects) {
        const A dsystem = -gradients.solve[at] * values.decay[at];
        gradients.beta[i] += dsystem * keys.kk[at];
        gradients.solve[at] = dsystem * values.beta[i];
      }
    }
  }
}

// Writes the gradients of decays and beta. A decay counts in the sums of its token and of all later ones, and in what
// the next state keeps of earlier tokens.
template <class T>
void store_decay_gradients(
    const DeltaBackwardCall<T>& call,
    const DeltaChunk& chunk,
    int64_t row,
    int64_t head,
    const DeltaValues<Wide<T>>& values,
    Wide<T> dwhole,
    DeltaGradients<Wide<T>>& gradients) {
  const int64_t heads = call.forward.value_heads(), at = (row * call.forward.tokens + chunk.first) * heads + head;
  Wide<T> earlier = dwhole * values.whole, later = 0;
  for (int64_t i = 0; i < chunk.count; ++i) {
    const Wide<T> kept = values.to_end[i] * gradients.to_end[i];
    gradients.to_end[i] = earlier;
    earlier += kept;
  }
  for (int64_t i = chunk.count - 1; i >= 0; --i) {
    later += gradients.sum[i] + values.from_begin[i] * gradients.from_begin[i];
    call.ddecay[at + i * heads] = later + gradients.to_end[i];
    call.dbeta[at + i * heads] = gradients.beta[i];
  }
}

// Backward of a chunk for one value head. `values` are those of `correct`; dstate is the gradient of the state after
// the chunk, and becomes that of the state before it.
template <class T>
void chunk_backward(
    const DeltaBackwardCall<T>& call,
    const DeltaChunk& chunk,
    int64_t row,
    int64_t head,
    const DeltaKeys<Wide<T>>& keys,
    const DeltaValues<Wide<T>>& values,
    const Wide<T>* state,
    Wide<T>* dstate,
    DeltaGradients<Wide<T>>& gradients) {
  using A = Wide<T>;
  const DeltaCall<T>& of = call.forward;
  const int64_t width = of.padded_value(), stride = of.value_heads() * of.value_size;
  const T* doutput = call.doutput + ((row * of.tokens + chunk.first) * of.value_heads() + head) * of.value_size;
  delta_load_rows(doutput, stride, chunk.count, of.value_size, gradients.output, keys.rows, width);
  clear(gradients.sum, kDeltaChunk);
  const A dwhole = dot(state, dstate, of.state_size());
  correction_backward(of, keys, values, dstate, gradients);
  reads_backward(call, chunk, row, head, keys, values, state, gradients);
  state_backward(of, keys, values, state, dstate, gradients);
  triangles_backward(of, keys, values, gradients);
  add_through_products(of, keys.rows, gradients.mix, false, keys.key, gradients.query);
  add_through_products(of, keys.rows, gradients.mix, true, keys.query, gradients.key);
  if (of.corrects) {
    add_through_products(of, keys.rows, gradients.solve, false, keys.key, gradients.key);
    add_through_products(of, keys.rows, gradients.solve, true, keys.key, gradients.key);
  }
  store_decay_gradients(call, chunk, row, head, values, dwhole, gradients);
}

// Writes the gradients of rows x, whose normalized form x^ = length x / norm has the gradient d: (length / norm) (d - u
// (u . d)) with u = x^ / length.
template <class T>
void store_normalized(
    const Wide<T>* normed,
    const Wide<T>* gradient,
    const Wide<T>* inverse_norm,
    Wide<T> length,
    int64_t padded,
    const DeltaChunk& chunk,
    int64_t size,
    int64_t stride,
    T* to) {
  for (int64_t row = 0; row < chunk.count; ++row) {
    const Wide<T>* x = normed + row * padded;
    const Wide<T>* d = gradient + row * padded;
    const Wide<T> along = dot(x, d, padded) / (length * length), factor = length * inverse_norm[row];
    for_each_vector<T>(
        size, [&](int64_t i, auto count) __attribute__((always_inline)) {
          store(to + row * stride + i, (load(d + i, count) - load(x + i, count) * along) * factor, count);
        });
  }
}

// Writes the gradients of rows that are not normalized.
template <class T>
void store_plain(
    const Wide<T>* gradient, int64_t padded, const DeltaChunk& chunk, int64_t size, int64_t stride, T* to) {
  for (int64_t row = 0; row < chunk.count; ++row) {
    for_each_vector<T>(
        size, [&](int64_t i, auto count) __attribute__((always_inline)) {
          store(to + row * stride + i, load(gradient + row * padded + i, count), count);
        });
  }
}

template <class T>
void store_key_gradients(
    const DeltaBackwardCall<T>& call,
    const DeltaChunk& chunk,
    int64_t row,
    int64_t key_head,
    const DeltaKeys<Wide<T>>& keys,
    const DeltaGradients<Wide<T>>& gradients) {
  const DeltaCall<T>& of = call.forward;
  const int64_t stride = of.key_heads * of.size;
  const int64_t at = ((row * of.tokens + chunk.first) * of.key_heads + key_head) * of.size;
  if (!of.corrects) {
    store_plain<T>(gradients.query, of.padded(), chunk, of.size, stride, call.dquery + at);
    store_plain<T>(gradients.key, of.padded(), chunk, of.size, stride, call.dkey + at);
    return;
  }
  const Wide<T> length = 1 / square_root(static_cast<Wide<T>>(of.size));
  store_normalized<T>(
      keys.query, gradients.query, keys.query_norm, length, of.padded(), chunk, of.size, stride, call.dquery + at);
  store_normalized<T>(keys.key, gradients.key, keys.key_norm, 1, of.padded(), chunk, of.size, stride, call.dkey + at);
}

}  // namespace
}  // namespace lehr::ops::LEHR_ARCH
