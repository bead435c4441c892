// The gated delta rule on a GPU: the scan over the chunks of a row, and the launches of the kernels of bodies.inl.
#include "lehr/ops/gated_delta_rule/bodies.inl"

namespace lehr::ops::cuda {

/// Returns the chunk at a place in the order of a scan, over the chunks of all value heads.
LEHR_HOST_DEVICE int64_t scanned_chunk(const DeltaLayout& layout, bool reverse, int64_t head, int64_t place) {
  const int64_t chunk = reverse ? layout.chunks - 1 - place : place;
  return (head / layout.group * layout.chunks + chunk) * layout.group + head % layout.group;
}

/// Processes 32 columns of the state of a value head, which do not depend on the others. A thread holds kHeld rows of
/// one column in registers. Products go through shared memory, kRows tokens at a time; those of the next step are read
/// meanwhile.
struct DeltaScanColumns {
  static constexpr int kColumns = 32;
  static constexpr int kHeld = 16;
  static constexpr int kRows = 4;
  static constexpr int kSteps = kChunk / kRows;            // of a chunk
  static constexpr int kShare = kRows * kHeld / kColumns;  // elements of left or right of a step that a thread reads
  static constexpr int kOutputs = kRows;                   // elements of x that it writes, if the block is one warp

  DeltaLayout layout;
  DeltaScan call;

  /// Returns the threads of a block for heads of `size`.
  static constexpr int64_t threads(int64_t size) { return kColumns * power_of_two_for((size + kHeld - 1) / kHeld); }
  static constexpr int64_t scratch(int64_t threads) {
    const int64_t warps = threads / kColumns;
    return (2 * kRows * kHeld * warps + kRows * kColumns * (warps + 1)) * static_cast<int64_t>(sizeof(float));
  }
  static constexpr int64_t column_blocks(int64_t value_size) { return (value_size + kColumns - 1) / kColumns; }

  template <class Group>
  LEHR_HOST_DEVICE void operator()(Group& group, int64_t index) const {
    const Thread me(*this, group, index);
    const Shared shared(group.scratch(), me.warps);
    float state[kHeld], next[kHeld] = {};
    Coming coming = {};
    load_start(me, state);
    fetch(me, call.left, 0, coming.left);
    put(me, coming.left, shared.left);
    fetch_all(me, 0, coming);
    group.sync();
    for (int64_t step = 0; step < layout.chunks * kSteps; ++step) {
      if (step % kSteps == 0) {
        begin_chunk(me, chunk_of(me, step), state, next);
      }
      multiply(me, shared, state);
      group.sync();
      add_up(me, shared, step, coming);
      put(me, coming.left, shared.left);  // of the next step
      put(me, coming.right, shared.right);
      fetch_all(me, step + 1, coming);
      group.sync();
      advance(me, shared, next);
      if (step % kSteps == kSteps - 1) {
#pragma unroll
        for (int i = 0; i < kHeld; ++i) {
          state[i] = next[i];
        }
      }
    }
    store_last(me, state);
  }

 private:
  struct Thread {
    int rank, size, warps, lane, padded;  // padded: elements of a row of left and right in shared memory
    int64_t head, column, first_row;

    template <class Group>
    LEHR_HOST_DEVICE Thread(const DeltaScanColumns& body, const Group& group, int64_t index)
        : rank(group.rank()),
          size(group.size()),
          warps(size / kColumns),
          lane(rank % kColumns),
          padded(warps * kHeld),
          head(index / column_blocks(body.call.value_size)),
          column(index % column_blocks(body.call.value_size) * kColumns + lane),
          first_row(rank / kColumns * kHeld) {}
  };
  struct Shared {
    float *left, *right;  // (kRows, padded)
    float* partial;       // (warps, kRows, kColumns)
    float* x;             // (kRows, kColumns)
    LEHR_HOST_DEVICE Shared(void* scratch, int warps)
        : left(static_cast<float*>(scratch)),
          right(left + kRows * kHeld * warps),
          partial(right + kRows * kHeld * warps),
          x(partial + warps * kRows * kColumns) {}
  };
  // The thread's elements of `right` and `offset` of a step, and of `left` of the step after it.
  struct Coming {
    float left[kShare], right[kShare], offset[kOutputs];
  };

  // The chunk of a step, over all value heads.
  LEHR_HOST_DEVICE int64_t chunk_of(const Thread& me, int64_t step) const {
    return scanned_chunk(layout, call.reverse, me.head, step / kSteps);
  }
  // The first of the tokens of a step, over all chunks.
  LEHR_HOST_DEVICE int64_t token_of(const Thread& me, int64_t step) const {
    return chunk_of(me, step) * kChunk + step % kSteps * kRows;
  }
  LEHR_HOST_DEVICE bool has(const Thread& me, int i) const {
    return me.column < call.value_size && me.first_row + i < call.size;
  }

  LEHR_HOST_DEVICE void load_start(const Thread& me, float (&state)[kHeld]) const {
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      const int64_t at = (me.head * call.size + me.first_row + i) * call.value_size + me.column;
      state[i] = call.start != nullptr && has(me, i) ? call.start[at] : 0;
    }
  }
  LEHR_HOST_DEVICE void store_last(const Thread& me, const float (&state)[kHeld]) const {
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      if (has(me, i)) {
        call.last[(me.head * call.size + me.first_row + i) * call.value_size + me.column] = state[i];
      }
    }
  }

  LEHR_HOST_DEVICE void begin_chunk(
      const Thread& me, int64_t chunk, const float (&state)[kHeld], float (&next)[kHeld]) const {
    const float whole = call.from_begin[chunk * kChunk + kChunk - 1];
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      const int64_t at = (chunk * call.size + me.first_row + i) * call.value_size + me.column;
      next[i] = whole * state[i];
      if (has(me, i)) {
        next[i] += call.added != nullptr ? call.added[at] : 0;
        if (call.states != nullptr) {
          call.states[at] = state[i];
        }
      }
    }
  }

  LEHR_HOST_DEVICE void fetch(const Thread& me, const float* from, int64_t step, float (&to)[kShare]) const {
    if (step < layout.chunks * kSteps) {
      const float* const rows = from + token_of(me, step) * call.size;
#pragma unroll
      for (int i = 0; i < kShare; ++i) {
        const int at = me.rank + i * me.size, column = at % me.padded;
        to[i] = column < call.size ? rows[at / me.padded * call.size + column] : 0;
      }
    }
  }
  LEHR_HOST_DEVICE static void put(const Thread& me, const float (&from)[kShare], float* to) {
#pragma unroll
    for (int i = 0; i < kShare; ++i) {
      to[me.rank + i * me.size] = from[i];
    }
  }
  LEHR_HOST_DEVICE void fetch_all(const Thread& me, int64_t step, Coming& coming) const {
    fetch(me, call.right, step, coming.right);
    fetch(me, call.left, step + 1, coming.left);
    if (step < layout.chunks * kSteps) {
#pragma unroll
      for (int i = 0; i < kOutputs; ++i) {
        const int row = (me.rank + i * me.size) / kColumns;
        const bool exists = row < kRows && me.column < call.value_size;
        coming.offset[i] = exists ? call.offset[(token_of(me, step) + row) * call.value_size + me.column] : 0;
      }
    }
  }

  // The product of left with the thread's rows of the state.
  LEHR_HOST_DEVICE static void multiply(const Thread& me, const Shared& shared, const float (&state)[kHeld]) {
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      const Values<kHeld> left = read<kHeld>(shared.left + row * me.padded, me.first_row, int64_t{me.padded});
      float sum = 0;
#pragma unroll
      for (int i = 0; i < kHeld; ++i) {
        sum += left.at[i] * state[i];
      }
      shared.partial[(me.rank / kColumns * kRows + row) * kColumns + me.lane] = sum;
    }
  }
  // x: the sums over the rows of all warps, with their offset.
  LEHR_HOST_DEVICE void add_up(const Thread& me, const Shared& shared, int64_t step, const Coming& coming) const {
#pragma unroll
    for (int i = 0; i < kOutputs; ++i) {
      const int at = me.rank + i * me.size;
      if (at < kRows * kColumns) {
        float x = coming.offset[i];
        for (int warp = 0; warp < me.warps; ++warp) {
          x += shared.partial[warp * kRows * kColumns + at];
        }
        shared.x[at] = x;
        if (call.x != nullptr && me.column < call.value_size) {
          call.x[(token_of(me, step) + at / kColumns) * call.value_size + me.column] = x;
        }
      }
    }
  }
  LEHR_HOST_DEVICE static void advance(const Thread& me, const Shared& shared, float (&next)[kHeld]) {
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      const Values<kHeld> right = read<kHeld>(shared.right + row * me.padded, me.first_row, int64_t{me.padded});
      const float x = shared.x[row * kColumns + me.lane];
#pragma unroll
      for (int i = 0; i < kHeld; ++i) {
        next[i] += right.at[i] * x;
      }
    }
  }
};

/// The scan without corrections: a thread passes kElements of the state of a value head from chunk to chunk.
struct DeltaStatePassing {
  static constexpr int kElements = 4;
  static constexpr int64_t kThreads = 256;

  DeltaLayout layout;
  DeltaScan call;
  bool packed;  // a state can be read in words of kElements

  /// Returns the blocks of a value head.
  static constexpr int64_t blocks(const DeltaScan& scan) {
    return (scan.size * scan.value_size + kThreads * kElements - 1) / (kThreads * kElements);
  }

  template <class Group>
  LEHR_HOST_DEVICE void operator()(Group& group, int64_t index) const {
    const int64_t size = call.size * call.value_size, head = index / blocks(call);
    const int64_t first = (index % blocks(call) * kThreads + group.rank()) * kElements;
    Values<kElements> state = {};
    if (call.start != nullptr) {
      state = read_few<kElements>(call.start + head * size, first, size, packed);
    }
    for (int64_t place = 0; place < layout.chunks; ++place) {
      const int64_t chunk = scanned_chunk(layout, call.reverse, head, place);
      const float whole = call.from_begin[chunk * kChunk + kChunk - 1];
      const Values<kElements> added = read_few<kElements>(call.added + chunk * size, first, size, packed);
      if (call.states != nullptr) {
        write_few(call.states + chunk * size, first, size, packed, state);
      }
#pragma unroll
      for (int i = 0; i < kElements; ++i) {
        state.at[i] = whole * state.at[i] + added.at[i];
      }
    }
    write_few(call.last + head * size, first, size, packed, state);
  }
};

namespace {
int64_t key_chunks(const DeltaLayout& layout) {
  return layout.rows * layout.heads * layout.chunks;
}

Status delta_decays(const DeltaLayout& layout, const float* decay, const float* beta, const DeltaDecays& decays) {
  return Launch::blocks(
      DeltaDecaysOfChunk{layout, decay, beta, decays},
      key_chunks(layout) * layout.group,
      kChunk,
      DeltaDecaysOfChunk::kScratch);
}

Status delta_triangles(const DeltaLayout& layout, const DeltaDecays& decays, const DeltaTriangles& triangles) {
  return Launch::blocks(
      DeltaTrianglesOfChunk{layout, decays, triangles},
      key_chunks(layout) * layout.group,
      kChunk,
      DeltaTrianglesOfChunk::kScratch);
}

Status delta_scan(const DeltaLayout& layout, const DeltaScan& scan) {
  const int64_t heads = layout.rows * layout.heads * layout.group;
  if (scan.right == nullptr) {
    const bool packed = scan.size * scan.value_size % DeltaStatePassing::kElements == 0 &&
                        aligned(scan.start, scan.states, scan.added, scan.last);
    return Launch::blocks(
        DeltaStatePassing{layout, scan, packed}, heads * DeltaStatePassing::blocks(scan), DeltaStatePassing::kThreads);
  }
  const int64_t threads = DeltaScanColumns::threads(scan.size);
  return Launch::blocks(
      DeltaScanColumns{layout, scan},
      heads * DeltaScanColumns::column_blocks(scan.value_size),
      threads,
      DeltaScanColumns::scratch(threads));
}

Status delta_backward(const DeltaLayout& layout, const DeltaDecays& decays, const DeltaTrianglesBackward& gradients) {
  return Launch::blocks(
      DeltaTrianglesBackwardOfChunk{layout, decays, gradients},
      key_chunks(layout),
      kChunk,
      DeltaTrianglesBackwardOfChunk::kScratch);
}

static_assert(DeltaScanColumns::threads(kMostDeltaSize) == 256);
constexpr DeltaLaunches kDelta = {
    .decays = delta_decays, .triangles = delta_triangles, .scan = delta_scan, .backward = delta_backward};
const Registered kDeltaEntry(kDelta);
}  // namespace

}  // namespace lehr::ops::cuda
