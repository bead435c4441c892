// Rotary embedding on a GPU, alone and after RMSNorm. A thread holds both elements of the pairs that it rotates;
// elements that are not rotated are paired with their neighbours.
#include "lehr/ops/cuda/kernel.h"
#include "lehr/ops/rms_norm/bodies.h"
#include "lehr/ops/rotary/kernels.h"

namespace lehr::ops::cuda {

template <int kCount>
struct PairValues {
  Values<kCount> first;
  Values<kCount> second;
};

/// The pairs of elements of a head of `size`: i and i + rotated / 2 in the half style; neighbours in the interleaved
/// style and behind the rotated part. A thread processes runs of kCount pairs, which divides size / 2 and rotated / 2.
struct HeadPairs {
  int rotated;
  int size;
  bool interleaved;

  LEHR_HOST_DEVICE int count() const { return size / 2; }

  /// Reads pairs [q, q + kCount) of a head, zeros beyond the last.
  template <int kCount, class T>
  LEHR_HOST_DEVICE PairValues<kCount> read_pairs(const T* head, int q) const {
    const Places at = places<kCount>(q);
    PairValues<kCount> pairs = {read<kCount>(head, at.first, size), read<kCount>(head, at.second, size)};
    if (at.neighbours) {
      const PairValues<kCount> in_order = pairs;
#pragma unroll
      for (int j = 0; j < kCount; ++j) {
        pairs.first.at[j] = element(in_order, 2 * j);
        pairs.second.at[j] = element(in_order, 2 * j + 1);
      }
    }
    return pairs;
  }

  template <int kCount, class T>
  LEHR_HOST_DEVICE void write_pairs(T* head, int q, const PairValues<kCount>& pairs) const {
    const Places at = places<kCount>(q);
    PairValues<kCount> in_order = pairs;
    if (at.neighbours) {
#pragma unroll
      for (int j = 0; j < kCount; ++j) {
        element(in_order, 2 * j) = pairs.first.at[j];
        element(in_order, 2 * j + 1) = pairs.second.at[j];
      }
    }
    write(head, at.first, size, in_order.first);
    write(head, at.second, size, in_order.second);
  }

 private:
  /// Positions of the two runs of kCount elements that a run of pairs consists of.
  struct Places {
    int first;
    int second;
    bool neighbours;  ///< Both elements of each pair are adjacent.
  };
  template <int kCount>
  LEHR_HOST_DEVICE Places places(int q) const {
    const bool neighbours = interleaved || q >= rotated / 2;
    return {neighbours ? 2 * q : q, neighbours ? 2 * q + kCount : q + rotated / 2, neighbours};
  }
  template <int kCount>
  static LEHR_HOST_DEVICE float& element(PairValues<kCount>& runs, int i) {
    return (i < kCount ? runs.first : runs.second).at[i % kCount];
  }
  template <int kCount>
  static LEHR_HOST_DEVICE float element(const PairValues<kCount>& runs, int i) {
    return (i < kCount ? runs.first : runs.second).at[i % kCount];
  }
};

/// Rotates pairs [q, q + kCount) by the angles of a token; backward applies the transposed map.
template <int kCount, class T>
LEHR_HOST_DEVICE void turn(
    const RotaryAngles<T>& angles, int64_t token, int q, bool backward, PairValues<kCount>& pairs) {
  const int half = static_cast<int>(angles.rotated) / 2;
  if (q >= half) {
    return;
  }
  const float* cos = angles.cos + token % angles.angle_rows * angles.rotated;
  const float* sin = angles.sin + token % angles.angle_rows * angles.rotated;
  const int other = angles.interleaved ? 0 : half;  // offset of the second elements' angles
  const Values<kCount> cos1 = read<kCount>(cos, q, half);
  const Values<kCount> sin1 = read<kCount>(sin, q, half);
  const Values<kCount> cos2 = read<kCount>(cos + other, q, half);
  const Values<kCount> sin2 = read<kCount>(sin + other, q, half);
#pragma unroll
  for (int j = 0; j < kCount; ++j) {
    const float a = pairs.first.at[j];
    const float b = pairs.second.at[j];
    pairs.first.at[j] = a * cos1.at[j] - b * (backward ? -sin2.at[j] : sin1.at[j]);
    pairs.second.at[j] = b * cos2.at[j] + a * (backward ? -sin1.at[j] : sin2.at[j]);
  }
}

/// Rotates one head of one token: head index % heads of token index / heads.
template <class T>
struct RotateHead {
  RotaryCall<T> call;
  HeadPairs pairs;

  template <class Group>
  LEHR_HOST_DEVICE void operator()(Group& group, int64_t index) const {
    constexpr int width = kPack<T>;
    for (int q = group.rank() * width; q < pairs.count(); q += group.size() * width) {
      auto values = pairs.template read_pairs<width>(call.x + index * call.size, q);
      turn(call.angles, index / call.heads, q, call.backward, values);
      pairs.write_pairs(call.y + index * call.size, q, values);
    }
  }
};

template <class T>
struct NormRotateHead {
  NormRotaryForward<T> call;
  HeadPairs pairs;

  template <class Group>
  LEHR_HOST_DEVICE void operator()(Group& group, int64_t index) const {
    constexpr int width = kPack<T>;
    const RmsNormForward<T>& norm = call.norm;
    const NormFactor<T> factor{norm.zero_centered};
    PairValues<width> kept[kKeptPairPacks<T>];
    float squares = 0;
#pragma unroll
    for (int k = 0; k < kKeptPairPacks<T>; ++k) {
      const int q = (k * group.size() + group.rank()) * width;
      kept[k] = pairs.template read_pairs<width>(norm.x + index * norm.size, q);
#pragma unroll
      for (int j = 0; j < width; ++j) {
        squares += kept[k].first.at[j] * kept[k].first.at[j] + kept[k].second.at[j] * kept[k].second.at[j];
      }
    }
    const float inverse_rms = inverse_rms_of(group.sum(squares), norm.size, norm.eps);
    if (norm.inverse_rms != nullptr && group.rank() == 0) {
      norm.inverse_rms[index] = inverse_rms;
    }
#pragma unroll
    for (int k = 0; k < kKeptPairPacks<T>; ++k) {
      const int q = (k * group.size() + group.rank()) * width;
      if (q < pairs.count()) {
        const auto weight = pairs.template read_pairs<width>(norm.weight, q);
#pragma unroll
        for (int j = 0; j < width; ++j) {
          kept[k].first.at[j] *= inverse_rms * factor.of(weight.first.at[j]);
          kept[k].second.at[j] *= inverse_rms * factor.of(weight.second.at[j]);
        }
        turn(call.angles, index / call.heads, q, false, kept[k]);
        pairs.write_pairs(norm.y + index * norm.size, q, kept[k]);
      }
    }
  }
};

/// Processes the heads index, index + groups, ... of all tokens: the backward of the rotation, then that of the norm as
/// in RmsNormBackwardRows. Here normalized values are not rounded before the multiplication by the weight.
template <class T>
struct NormRotateBackwardHeads {
  NormRotaryBackward<T> call;
  HeadPairs pairs;
  float* parts;  ///< (groups, size); null if not requested.
  int64_t rows;  ///< tokens * heads
  int64_t groups;

  template <class Group>
  LEHR_HOST_DEVICE void operator()(Group& group, int64_t index) const {
    constexpr int width = kPack<T>;
    const RmsNormBackward<T>& norm = call.norm;
    const NormFactor<T> factor{norm.zero_centered};
    const float mean_factor = 1 / static_cast<float>(norm.size);
    PairValues<width> dweight[kKeptPairPacks<T>] = {};
    for (int64_t row = index; row < rows; row += groups) {
      const float inverse_rms = norm.inverse_rms[row];
      PairValues<width> normalized[kKeptPairPacks<T>];
      PairValues<width> incoming[kKeptPairPacks<T>];
      float sum = 0;
#pragma unroll
      for (int k = 0; k < kKeptPairPacks<T>; ++k) {
        const int q = (k * group.size() + group.rank()) * width;
        normalized[k] = pairs.template read_pairs<width>(norm.x + row * norm.size, q);
        incoming[k] = pairs.template read_pairs<width>(norm.dy + row * norm.size, q);
        turn(call.angles, row / call.heads, q, true, incoming[k]);
        const auto weight = pairs.template read_pairs<width>(norm.weight, q);
        sum += visit(factor, inverse_rms, weight.first, normalized[k].first, incoming[k].first, dweight[k].first);
        sum += visit(factor, inverse_rms, weight.second, normalized[k].second, incoming[k].second, dweight[k].second);
      }
      if (norm.dx != nullptr) {
        const float mean = group.sum(sum) * mean_factor;
#pragma unroll
        for (int k = 0; k < kKeptPairPacks<T>; ++k) {
          const int q = (k * group.size() + group.rank()) * width;
#pragma unroll
          for (int j = 0; j < width; ++j) {
            incoming[k].first.at[j] = (incoming[k].first.at[j] - normalized[k].first.at[j] * mean) * inverse_rms;
            incoming[k].second.at[j] = (incoming[k].second.at[j] - normalized[k].second.at[j] * mean) * inverse_rms;
          }
          pairs.write_pairs(norm.dx + row * norm.size, q, incoming[k]);
        }
      }
    }
    if (parts != nullptr) {
#pragma unroll
      for (int k = 0; k < kKeptPairPacks<T>; ++k) {
        pairs.write_pairs(parts + index * norm.size, (k * group.size() + group.rank()) * width, dweight[k]);
      }
    }
  }

 private:
  /// Replaces x by x / rms and dy by dy * factor; adds to the weight's gradient, and returns the sum of dy * factor * x
  /// / rms.
  template <int kCount>
  static LEHR_HOST_DEVICE float visit(
      const NormFactor<T>& factor,
      float inverse_rms,
      const Values<kCount>& weight,
      Values<kCount>& normalized,
      Values<kCount>& incoming,
      Values<kCount>& dweight) {
    float sum = 0;
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      normalized.at[j] *= inverse_rms;
      dweight.at[j] += incoming.at[j] * normalized.at[j];
      incoming.at[j] *= factor.of(weight.at[j]);
      sum += incoming.at[j] * normalized.at[j];
    }
    return sum;
  }
};

namespace {
constexpr int64_t kAnyNumber = int64_t{1} << 40;

template <class T>
HeadPairs pairs_of(const RotaryAngles<T>& angles, int64_t size) {
  return {static_cast<int>(angles.rotated), static_cast<int>(size), angles.interleaved};
}

template <class T>
Status rotary(const RotaryCall<T>& call, int64_t tokens) {
  const HeadPairs pairs = pairs_of(call.angles, call.size);
  const int64_t threads = threads_for(pairs.count() / kPack<T>, kAnyNumber);
  return Launch::warps(RotateHead<T>{call, pairs}, tokens * call.heads, threads);
}

template <class T>
Status norm_rotary_forward(const NormRotaryForward<T>& call, int64_t tokens) {
  const NormRotateHead<T> body{call, pairs_of(call.angles, call.norm.size)};
  return Launch::warps(body, tokens * call.heads, head_threads<T>(call.norm.size));
}

template <class T>
Status norm_rotary_backward(const NormRotaryBackward<T>& call, const WeightGradient<T>& dweight, int64_t tokens) {
  const HeadPairs pairs = pairs_of(call.angles, call.norm.size);
  const NormRotateBackwardHeads<T> body{call, pairs, dweight.parts, tokens * call.heads, dweight.count};
  const Status status = Launch::warps(body, dweight.count, head_threads<T>(call.norm.size));
  return status != nullptr ? status : sum_parts(dweight, call.norm.size);
}

template <class T>
constexpr RotaryLaunches<T> kRotary = {
    .rotary = rotary<T>, .norm_forward = norm_rotary_forward<T>, .norm_backward = norm_rotary_backward<T>};
const Registered kRotaryEntries(kRotary<float>, kRotary<Bf16>);
}  // namespace

}  // namespace lehr::ops::cuda
