// Bodies of stochastic rounding, alone and at the end of a step of AdamW. The random bits are those of
// kernel.inl: 128 elements share 16 blocks of Philox, and element i uses half (i / 16) of block (i % 16).
//
// Eight threads share such a group of elements. Each computes two adjacent blocks and so processes pairs of elements,
// which it reads and writes in one access.
#include "lehr/ops/cuda/kernel.h"
#include "lehr/ops/stochastic_rounding/kernels.h"

namespace lehr::ops::cuda {

constexpr int64_t kNoiseThreads = 8;

/// Two adjacent elements.
template <class T>
struct alignas(2 * sizeof(T)) Pair {
  T at[2];
};

/// Writes a pair in one access (see store in portable.h).
LEHR_HOST_DEVICE void store_pair(Bf16* p, const Pair<Bf16>& pair) {
#ifdef __CUDA_ARCH__
  const uint32_t both = pair.at[0].bits | static_cast<uint32_t>(pair.at[1].bits) << 16;
  asm volatile("st.b32 [%0], %1;" ::"l"(p), "r"(both) : "memory");
#else
  *reinterpret_cast<Pair<Bf16>*>(p) = pair;
#endif
}
LEHR_HOST_DEVICE void store_pair(float* p, const Pair<float>& pair) {
#ifdef __CUDA_ARCH__
  asm volatile("st.v2.f32 [%0], {%1, %2};" ::"l"(p), "f"(pair.at[0]), "f"(pair.at[1]) : "memory");
#else
  *reinterpret_cast<Pair<float>*>(p) = pair;
#endif
}

struct PhiloxBlock {
  uint32_t word[4];
};

/// Returns Philox4x32-10 (see lehr/base/random.h) of block number `block`.
LEHR_HOST_DEVICE PhiloxBlock philox(const RoundingNoise& noise, uint64_t block) {
  PhiloxBlock c = {
      {static_cast<uint32_t>(block),
       static_cast<uint32_t>(block >> 32),
       static_cast<uint32_t>(noise.stream),
       static_cast<uint32_t>(noise.stream >> 32)}};
  uint32_t low = static_cast<uint32_t>(noise.seed);
  uint32_t high = static_cast<uint32_t>(noise.seed >> 32);
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = static_cast<uint64_t>(c.word[0]) * 0xD2511F53u;
    const uint64_t b = static_cast<uint64_t>(c.word[2]) * 0xCD9E8D57u;
    c = {
        {static_cast<uint32_t>(b >> 32) ^ c.word[1] ^ low,
         static_cast<uint32_t>(b),
         static_cast<uint32_t>(a >> 32) ^ c.word[3] ^ high,
         static_cast<uint32_t>(a)}};
    low += 0x9E3779B9u;
    high += 0xBB67AE85u;
  }
  return c;
}

/// The random bits of a thread's elements 2 rank + 16 h and 2 rank + 16 h + 1, for h from 0 to 7.
struct ThreadNoise {
  PhiloxBlock block[2];

  /// Returns the 16 bits of element `second` of pair h.
  LEHR_HOST_DEVICE uint32_t bits(int h, int second) const {
    const uint32_t word = block[second].word[h / 2];
    return h % 2 == 1 ? word >> 16 : word & 0xffff;
  }
};

/// `group` is the index of a group of 128 elements in the whole parameter.
LEHR_HOST_DEVICE ThreadNoise noise_of(const RoundingNoise& noise, int64_t group, int rank) {
  const auto first = static_cast<uint64_t>(group * 16 + 2 * rank);
  return {{philox(noise, first), philox(noise, first + 1)}};
}

/// Adds `random` units of 2^-16 of the last place to x, and truncates. Infinities and NaN stay as they are, and finite
/// numbers stay finite.
LEHR_HOST_DEVICE Bf16 narrow_stochastically(float x, uint32_t random) {
  const uint32_t bits = __builtin_bit_cast(uint32_t, x);
  const uint32_t cut = bits >> 16;
  const uint32_t moved = (bits + random) >> 16;
  const uint32_t rounded = (moved & 0x7fff) >= 0x7f80 ? cut : moved;
  return {static_cast<uint16_t>(x == x ? rounded : (cut | 0x40))};
}

/// Stores x, rounded stochastically in bfloat16.
LEHR_HOST_DEVICE void put(float& to, float x, uint32_t) {
  to = x;
}
LEHR_HOST_DEVICE void put(Bf16& to, float x, uint32_t random) {
  to = narrow_stochastically(x, random);
}

/// The elements of one group of 128 in one run.
struct RunGroup {
  int64_t local;  ///< Index of the run's first element in the tensor.
  int64_t first;  ///< Its index in the whole parameter.
  int64_t count;  ///< Elements per run.
  int64_t group;  ///< Index of the group of 128 in the whole parameter.
  bool paired;    ///< Pairs of the group begin at even elements of the tensor.

  /// Returns the index in the tensor of element i of the group.
  LEHR_HOST_DEVICE int64_t at(int64_t i) const { return local + group * kNoiseGroup + i - first; }
  LEHR_HOST_DEVICE bool has(int64_t i) const {
    const int64_t in_run = group * kNoiseGroup + i - first;
    return in_run >= 0 && in_run < count;
  }
};

LEHR_HOST_DEVICE RunGroup run_group(const RoundingRuns& runs, int64_t index, bool even) {
  const int64_t groups = groups_a_run(runs.count);
  const int64_t run = index / groups;
  int64_t first = runs.first;
  int64_t rest = run;
  for (int64_t dim = runs.dims - 1; dim >= 0; --dim) {
    first += rest % runs.size[dim] * runs.step[dim];
    rest /= runs.size[dim];
  }
  const int64_t local = run * runs.count;
  return {local, first, runs.count, first / kNoiseGroup + index % groups, even && (local - first) % 2 == 0};
}

/// Reads elements i and i + 1 of the group.
template <class T>
LEHR_HOST_DEVICE Values<2> read_pair(const T* p, const RunGroup& in, int64_t i) {
  Values<2> values = {};
  if (in.paired && in.has(i) && in.has(i + 1)) {
    const Pair<T> pair = *reinterpret_cast<const Pair<T>*>(p + in.at(i));
    values.at[0] = widen(pair.at[0]);
    values.at[1] = widen(pair.at[1]);
  } else {
    values.at[0] = in.has(i) ? widen(p[in.at(i)]) : 0;
    values.at[1] = in.has(i + 1) ? widen(p[in.at(i + 1)]) : 0;
  }
  return values;
}

template <class T>
LEHR_HOST_DEVICE void write_pair(
    T* p, const RunGroup& in, int64_t i, const Values<2>& values, const uint32_t random[2]) {
  Pair<T> pair;
  put(pair.at[0], values.at[0], random[0]);
  put(pair.at[1], values.at[1], random[1]);
  if (in.paired && in.has(i) && in.has(i + 1)) {
    store_pair(p + in.at(i), pair);
    return;
  }
  if (in.has(i)) {
    p[in.at(i)] = pair.at[0];
  }
  if (in.has(i + 1)) {
    p[in.at(i + 1)] = pair.at[1];
  }
}

struct RoundGroup {
  const float* x;
  Bf16* y;
  RoundingNoise noise;
  RoundingRuns runs;
  bool even;  ///< Pointers are aligned to a pair.

  template <class Group>
  LEHR_HOST_DEVICE void operator()(Group& group, int64_t index) const {
    const RunGroup in = run_group(runs, index, even);
    const ThreadNoise random = noise_of(noise, in.group, group.rank());
#pragma unroll
    for (int h = 0; h < 8; ++h) {
      const int64_t i = 2 * group.rank() + 16 * h;
      const uint32_t bits[2] = {random.bits(h, 0), random.bits(h, 1)};
      write_pair(y, in, i, read_pair(x, in, i), bits);
    }
  }
};

/// Updates groups of 128 elements of a list of tensors; gradients of type G.
template <class T, class G>
struct StochasticAdamWGroup {
  StochasticAdamWList<T> list;

  template <class Group>
  LEHR_HOST_DEVICE void operator()(Group& group, int64_t index) const {
    if (list.found_inf != nullptr && *list.found_inf != 0) {
      return;
    }
    const float grad_factor = list.grad_factor * (list.grad_scale != nullptr ? *list.grad_scale : 1);
    int64_t number = 0;
    for (int64_t jump = StochasticAdamWList<T>::kMost / 2; jump > 0; jump /= 2) {
      if (number + jump < list.tensors && list.of[number + jump].first_group <= index) {
        number += jump;
      }
    }
    const auto& c = list.of[number];
    const G* const grad = static_cast<const G*>(c.grad);
    const bool even = paired(c.value) && paired(grad) && paired(c.exp_avg) && paired(c.exp_avg_sq);
    const RunGroup in = run_group(c.runs, index - c.first_group, even);
    const auto noise = [&](uint64_t stream) { return noise_of({list.seed, stream, false}, in.group, group.rank()); };
    const ThreadNoise value_noise = noise(c.value_stream);
    ThreadNoise m_noise = {};
    ThreadNoise v_noise = {};
    if constexpr (sizeof(T) == sizeof(Bf16)) {
      m_noise = noise(c.exp_avg_stream);
      v_noise = noise(c.exp_avg_sq_stream);
    }
#pragma unroll
    for (int begin = 0; begin < 8; begin += kAhead) {
      Values<2> p[kAhead], g[kAhead], m[kAhead], v[kAhead];
#pragma unroll
      for (int u = 0; u < kAhead; ++u) {
        const int64_t i = 2 * group.rank() + 16 * (begin + u);
        p[u] = read_pair(c.value, in, i);
        g[u] = read_pair(grad, in, i);
        m[u] = read_pair(c.exp_avg, in, i);
        v[u] = read_pair(c.exp_avg_sq, in, i);
      }
#pragma unroll
      for (int u = 0; u < kAhead; ++u) {
        const int h = begin + u;
        const int64_t i = 2 * group.rank() + 16 * h;
        uint32_t random[3][2] = {};
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          step(c, p[u].at[j], grad_factor * g[u].at[j], m[u].at[j], v[u].at[j]);
          random[0][j] = value_noise.bits(h, j);
          if constexpr (sizeof(T) == sizeof(Bf16)) {
            random[1][j] = m_noise.bits(h, j);
            random[2][j] = v_noise.bits(h, j);
          }
        }
        write_pair(c.value, in, i, p[u], random[0]);
        write_pair(c.exp_avg, in, i, m[u], random[1]);
        write_pair(c.exp_avg_sq, in, i, v[u], random[2]);
      }
    }
  }

 private:
  // Pairs per thread and tensor in flight; the thread's registers also hold the noise of bfloat16 moments.
  static constexpr int kAhead = sizeof(T) == sizeof(Bf16) ? 2 : 4;

  template <class E>
  static LEHR_HOST_DEVICE bool paired(const E* pointer) {
    return reinterpret_cast<uintptr_t>(pointer) % (2 * sizeof(E)) == 0;
  }

  LEHR_HOST_DEVICE void step(
      const typename StochasticAdamWList<T>::One& c, float& p, float g, float& m, float& v) const {
    m = m * list.beta1 + g * list.one_minus_beta1;
    v = v * list.beta2 + g * g * list.one_minus_beta2;
    p = p * list.decay - m * c.step_size / (sqrtf(v) * c.root_factor + list.eps);
  }
};

namespace {
template <class T>
Status stochastic_adamw(const StochasticAdamWList<T>& list) {
  return list.wide_grads ? Launch::warps(StochasticAdamWGroup<T, float>{list}, list.groups, kNoiseThreads)
                         : Launch::warps(StochasticAdamWGroup<T, Bf16>{list}, list.groups, kNoiseThreads);
}

template <class T>
constexpr StochasticAdamWLaunches<T> kStochasticAdamW = {.adamw = stochastic_adamw<T>};
const Registered kStochasticAdamWEntries(kStochasticAdamW<float>, kStochasticAdamW<Bf16>);

Status stochastic_round(const float* x, Bf16* y, const RoundingNoise& noise, const RoundingRuns& runs) {
  const bool even = reinterpret_cast<uintptr_t>(x) % sizeof(Pair<float>) == 0 &&
                    reinterpret_cast<uintptr_t>(y) % sizeof(Pair<Bf16>) == 0;
  return Launch::warps(RoundGroup{x, y, noise, runs, even}, groups_of(runs), kNoiseThreads);
}

constexpr StochasticRoundLaunches kStochasticRound = {.round = stochastic_round};
const Registered kStochasticRoundEntry(kStochasticRound);
}  // namespace

}  // namespace lehr::ops::cuda
