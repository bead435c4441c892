// Stochastic rounding to bfloat16, alone and fused with AdamW. The random bits of a group of elements are generated
// into a buffer first, so that the arithmetic is one plain loop for every kind of noise.
#pragma once

#include "lehr/ops/kernels/vec.inl"
#include "lehr/ops/stochastic_rounding/kernels.h"

namespace lehr::ops::LEHR_ARCH {
namespace {

using UlongVec = uint64_t __attribute__((vector_size(LEHR_VECTOR_BYTES)));

/// Low and high halves of the 64-bit products of the lanes with a constant.
struct Product {
  UintVec low, high;
};
LEHR_INLINE Product multiply(const UintVec& x, uint64_t by) {
  const UlongVec pairs = bit_cast<UlongVec>(x);
  const UlongVec even = (pairs & 0xffffffff) * by;
  const UlongVec odd = (pairs >> 32) * by;
  return {
      bit_cast<UintVec>((even & 0xffffffff) | (odd << 32)),
      bit_cast<UintVec>((even >> 32) | (odd & 0xffffffff00000000))};
}

/// Philox4x32-10 (Salmon et al., https://doi.org/10.1145/2063384.2063405) with one counter per lane. `counter` is
/// replaced by the random words. See lehr/base/random.cpp.
LEHR_INLINE void philox(UintVec counter[4], uint64_t key) {
  uint32_t low = static_cast<uint32_t>(key);
  uint32_t high = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const Product a = multiply(counter[0], 0xD2511F53);
    const Product b = multiply(counter[2], 0xCD9E8D57);
    const UintVec first = b.high ^ counter[1] ^ low;
    const UintVec third = a.high ^ counter[3] ^ high;
    counter[0] = first;
    counter[1] = b.low;
    counter[2] = third;
    counter[3] = a.low;
    low += 0x9E3779B9;
    high += 0xBB67AE85;
  }
}

/// Returns the words of the blocks first, first + 1, ..., one per lane. `first` is a multiple of 16.
LEHR_INLINE void philox_blocks(const RoundingNoise& noise, uint64_t first, UintVec words[4]) {
  UintVec lane{};
  for (uint32_t i = 0; i < kLanes<float>; ++i) {
    lane[i] = i;
  }
  words[0] = lane + static_cast<uint32_t>(first);
  words[1] = UintVec{} + static_cast<uint32_t>(first >> 32);
  words[2] = UintVec{} + static_cast<uint32_t>(noise.stream);
  words[3] = UintVec{} + static_cast<uint32_t>(noise.stream >> 32);
  philox(words, noise.seed);
}

/// Writes the random bits of the elements [128 group, 128 group + 128).
inline void fill_noise(const RoundingNoise& noise, int64_t group, uint16_t* bits) {
  constexpr int64_t lanes = kLanes<float>;
  if (noise.block_an_element) {
    for (int64_t i = 0; i < kNoiseGroup; i += lanes) {
      UintVec words[4];
      philox_blocks(noise, static_cast<uint64_t>(group * kNoiseGroup + i), words);
      write(bits + i, __builtin_convertvector(words[0], HalfBitsVec), All{});
    }
    return;
  }
  constexpr int64_t blocks = kNoiseGroup / 8;
  for (int64_t i = 0; i < blocks; i += lanes) {
    UintVec words[4];
    philox_blocks(noise, static_cast<uint64_t>(group * blocks + i), words);
    for (int64_t word = 0; word < 4; ++word) {
      uint16_t* out = bits + 2 * word * blocks + i;
      write(out, __builtin_convertvector(words[word], HalfBitsVec), All{});
      write(out + blocks, __builtin_convertvector(words[word] >> 16, HalfBitsVec), All{});
    }
  }
}

/// Adds noise to the 16 bits that bfloat16 drops, and truncates: rounds up with the probability of the dropped
/// fraction. Finite values stay finite; infinities and NaN do not change.
LEHR_INLINE HalfBitsVec narrow_stochastically(const FloatVec& v, const HalfBitsVec& noise) {
  const UintVec bits = bit_cast<UintVec>(v);
  const UintVec cut = bits >> 16;
  const UintVec moved = (bits + __builtin_convertvector(noise, UintVec)) >> 16;
  const UintVec rounded = (moved & 0x7fff) >= 0x7f80 ? cut : moved;
  return __builtin_convertvector((v == v) ? rounded : (cut | 0x40), HalfBitsVec);
}

template <class Count>
LEHR_INLINE void store_stochastically(Bf16* p, const FloatVec& v, const uint16_t* noise, Count count) {
  write(p, narrow_stochastically(v, read<HalfBitsVec>(noise, All{})), count);
}
template <class Count>
LEHR_INLINE void store_stochastically(float* p, const FloatVec& v, const uint16_t*, Count count) {
  store(p, v, count);
}

/// Calls body(group, begin, count, skip) per group: `count` elements of the shard, from `begin` on, are in the group;
/// its first `skip` elements are before the shard.
template <class Body>
LEHR_INLINE void for_each_group(const RoundingRange& range, int64_t first, int64_t last, const Body& body) {
  for (int64_t group = first; group < last; ++group) {
    const int64_t at = group * kNoiseGroup - range.first;
    const int64_t begin = at > 0 ? at : 0;
    const int64_t end = at + kNoiseGroup < range.count ? at + kNoiseGroup : range.count;
    body(group, begin, end - begin, begin - at);
  }
}

/// The last elements of a group are read with a whole vector.
constexpr int64_t kNoiseBuffer = kNoiseGroup + kLanes<float>;

template <class T>
void stochastic_round(
    const T* x, Bf16* y, const RoundingRange& range, const RoundingNoise& noise, int64_t first, int64_t last) {
  uint16_t bits[kNoiseBuffer] = {};
  for_each_group(
      range,
      first,
      last,
      [&](int64_t group, int64_t begin, int64_t size, int64_t skip) __attribute__((always_inline)) {
        fill_noise(noise, group, bits);
        for_each_vector<T>(
            size, [&](int64_t i, auto count) __attribute__((always_inline)) {
              store_stochastically(y + begin + i, load(x + begin + i, count), bits + skip + i, count);
            });
      });
}

template <class T, class G>
void stochastic_adamw_with(const StochasticAdamWCall<T>& call, const G* grad, int64_t first, int64_t last) {
  const StochasticAdamWCall<T> c = call;  // a local copy: the compiler knows that stores below do not change it
  uint16_t value_bits[kNoiseBuffer] = {};
  uint16_t exp_avg_bits[kNoiseBuffer] = {};
  uint16_t exp_avg_sq_bits[kNoiseBuffer] = {};
  for_each_group(
      c.range,
      first,
      last,
      [&](int64_t group, int64_t begin, int64_t size, int64_t skip) __attribute__((always_inline)) {
        fill_noise(c.value_noise, group, value_bits);
        if constexpr (sizeof(T) == sizeof(Bf16)) {
          fill_noise(c.exp_avg_noise, group, exp_avg_bits);
          fill_noise(c.exp_avg_sq_noise, group, exp_avg_sq_bits);
        }
        for_each_vector<T>(
            size, [&](int64_t j, auto count) __attribute__((always_inline)) {
              const int64_t i = begin + j;
              const FloatVec g = load(grad + i, count) * c.grad_factor;
              const FloatVec m = load(c.exp_avg + i, count) * c.beta1 + g * c.one_minus_beta1;
              const FloatVec v = load(c.exp_avg_sq + i, count) * c.beta2 + g * g * c.one_minus_beta2;
              const FloatVec p = load(c.value + i, count) * c.decay;
              const FloatVec update = m * c.step_size / (square_root(v) * c.root_factor + c.eps);
              store_stochastically(c.value + i, p - update, value_bits + skip + j, count);
              store_stochastically(c.exp_avg + i, m, exp_avg_bits + skip + j, count);
              store_stochastically(c.exp_avg_sq + i, v, exp_avg_sq_bits + skip + j, count);
            });
      });
}

template <class T>
void stochastic_adamw(const StochasticAdamWCall<T>& call, int64_t first, int64_t last) {
  if (call.grad != nullptr) {
    stochastic_adamw_with(call, call.grad, first, last);
  } else {
    stochastic_adamw_with(call, call.grad_bf16, first, last);
  }
}

template <class T>
constexpr StochasticAdamWKernels<T> kStochasticAdamW = {.adamw = stochastic_adamw<T>};

constexpr StochasticRoundKernels kStochasticRound = {.round = stochastic_round<float>};

}  // namespace

LEHR_KERNELS(kStochasticRound)
LEHR_KERNELS(kStochasticAdamW<float>)
LEHR_KERNELS(kStochasticAdamW<Bf16>)

}  // namespace lehr::ops::LEHR_ARCH
