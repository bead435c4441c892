// The gated delta rule on the CPU: chunk after chunk of a row, for one key head and its value heads.
#pragma once

#include "lehr/ops/gated_delta_rule/chunk.inl"
#include "lehr/ops/gated_delta_rule/gradient.inl"

namespace lehr::ops::LEHR_ARCH {
namespace {

// Computes the outputs of a chunk, (rows, padded_value), in values.held.
template <class T>
void read_output(
    const DeltaCall<T>& call, const DeltaKeys<Wide<T>>& keys, const Wide<T>* state, DeltaValues<Wide<T>>& values) {
  const int64_t width = call.padded_value();
  Wide<T>* const out = values.held;
  read_state(call, keys.rows, keys.query, state, out);
  scale_rows(values.from_begin, keys.rows, width, out);
  delta_product<Wide<T>>(
      {.a = values.mix,
       .a_row = kDeltaChunk,
       .a_column = 1,
       .b = values.correction,
       .b_stride = width,
       .c = out,
       .c_stride = width,
       .rows = keys.rows,
       .columns = width,
       .depth = keys.rows,
       .part = DeltaPart::lower,
       .keep = 1,
       .from = out});
}

template <class T>
void delta_forward(const DeltaCall<T>& call, T* output, Wide<T>* final, Wide<T>* memory, int64_t index) {
  using A = Wide<T>;
  const int64_t row = index / call.key_heads, key_head = index % call.key_heads, width = call.padded_value();
  DeltaScratch<A> scratch{memory};
  DeltaKeys<A> keys(scratch, call.padded());
  DeltaValues<A> values(scratch, width);
  A* const states = scratch.take(call.group * call.state_size());
  for (int64_t i = call.first_chunks[row]; i < call.first_chunks[row + 1]; ++i) {
    const DeltaChunk& chunk = call.chunks[i];
    load_keys(call, chunk, row, key_head, keys);
    for (int64_t g = 0; g < call.group; ++g) {
      const int64_t head = key_head * call.group + g;
      A* const state = states + g * call.state_size();
      if (chunk.begins) {
        load_state(call, initial_state(call, row, head, chunk), state);
      }
      correct(call, chunk, row, head, keys, state, values);
      if (output != nullptr) {
        read_output(call, keys, state, values);
        store_values(call, chunk, row, head, values.held, output);
      }
      advance(call, keys, values, values.held, state, state);
    }
  }
  for (int64_t g = 0; final != nullptr && g < call.group; ++g) {
    const int64_t head = row * call.value_heads() + key_head * call.group + g;
    store_state(call, states + g * call.state_size(), final + head * call.size * call.value_size);
  }
}

// Computes the state before every chunk of the job: (chunks, group) states.
template <class T>
void recompute_states(
    const DeltaCall<T>& call,
    int64_t row,
    int64_t key_head,
    DeltaKeys<Wide<T>>& keys,
    DeltaValues<Wide<T>>& values,
    Wide<T>* states) {
  const int64_t first = call.first_chunks[row], last = call.first_chunks[row + 1];
  for (int64_t i = first; i < last; ++i) {
    const DeltaChunk& chunk = call.chunks[i];
    const bool continues = i + 1 < last && !call.chunks[i + 1].begins;
    if (continues) {
      load_keys(call, chunk, row, key_head, keys);
    }
    for (int64_t g = 0; g < call.group; ++g) {
      const int64_t head = key_head * call.group + g;
      Wide<T>* const state = states + ((i - first) * call.group + g) * call.state_size();
      if (chunk.begins) {
        load_state(call, initial_state(call, row, head, chunk), state);
      }
      if (continues) {
        correct(call, chunk, row, head, keys, state, values);
        advance(call, keys, values, values.held, state, state + call.group * call.state_size());
      }
    }
  }
}

template <class T>
void delta_backward(const DeltaBackwardCall<T>& call, Wide<T>* memory, int64_t index) {
  using A = Wide<T>;
  const DeltaCall<T>& of = call.forward;
  const int64_t row = index / of.key_heads, key_head = index % of.key_heads;
  const int64_t first = of.first_chunks[row], last = of.first_chunks[row + 1];
  DeltaScratch<A> scratch{memory};
  DeltaKeys<A> keys(scratch, of.padded());
  DeltaValues<A> values(scratch, of.padded_value());
  DeltaGradients<A> gradients(scratch, of.padded(), of.padded_value());
  A* const dstates = scratch.take(of.group * of.state_size());
  A* const states = scratch.take((last - first) * of.group * of.state_size());
  recompute_states(of, row, key_head, keys, values, states);
  for (int64_t g = 0; g < of.group; ++g) {
    const int64_t head = row * of.value_heads() + key_head * of.group + g;
    load_state(
        of,
        call.dfinal != nullptr ? call.dfinal + head * of.size * of.value_size : nullptr,
        dstates + g * of.state_size());
  }
  for (int64_t i = last - 1; i >= first; --i) {
    const DeltaChunk& chunk = of.chunks[i];
    load_keys(of, chunk, row, key_head, keys);
    clear(gradients.query, keys.rows * of.padded());
    clear(gradients.key, keys.rows * of.padded());
    for (int64_t g = 0; g < of.group; ++g) {
      const int64_t head = key_head * of.group + g;
      const A* const state = states + ((i - first) * of.group + g) * of.state_size();
      A* const dstate = dstates + g * of.state_size();
      correct(of, chunk, row, head, keys, state, values);
      chunk_backward(call, chunk, row, head, keys, values, state, dstate, gradients);
      if (chunk.begins) {
        if (chunk.first == 0 && call.dinitial != nullptr) {
          store_state(of, dstate, call.dinitial + (row * of.value_heads() + head) * of.size * of.value_size);
        }
        clear(dstate, of.state_size());
      }
    }
    store_key_gradients(call, chunk, row, key_head, keys, gradients);
  }
}

template <class T>
constexpr DeltaKernels<T> kGatedDelta = {.forward = delta_forward<T>, .backward = delta_backward<T>};

}  // namespace

LEHR_KERNELS(kGatedDelta<float>)
LEHR_KERNELS(kGatedDelta<double>)
LEHR_KERNELS(kGatedDelta<Bf16>)

}  // namespace lehr::ops::LEHR_ARCH
