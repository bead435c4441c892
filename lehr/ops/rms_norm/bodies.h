// Bodies of RMSNorm: a group of threads holds a row in registers, so the row is read once.
#pragma once

#include "lehr/ops/cuda/kernel.h"
#include "lehr/ops/rms_norm/kernels.h"

namespace lehr::ops::cuda {

/// The factor of normalized values, and the values that it multiplies.
template <class T>
struct NormFactor {
  bool zero_centered;
  LEHR_HOST_DEVICE float of(float weight) const { return zero_centered ? 1 + weight : weight; }
  LEHR_HOST_DEVICE float met(float normalized) const { return zero_centered ? normalized : rounded_to<T>(normalized); }
};

LEHR_HOST_DEVICE float inverse_rms_of(float squares, int64_t size, double eps) {
  return 1 / sqrtf(squares / static_cast<float>(size) + static_cast<float>(eps));
}

/// Normalizes one row, or the sum of two.
template <class T>
struct RmsNormForwardRow {
  RmsNormForward<T> call;

  template <class Group>
  LEHR_HOST_DEVICE void operator()(Group& group, int64_t row) const {
    constexpr int width = kPack<T>;
    const int size = static_cast<int>(call.size);
    const T* x = call.x + row * call.size;
    const NormFactor<T> factor{call.zero_centered};
    Values<width> kept[kKeptPacks<T>];
#pragma unroll
    for (int k = 0; k < kKeptPacks<T>; ++k) {
      kept[k] = read<width>(x, (k * group.size() + group.rank()) * width, size);
    }
    if (call.branch != nullptr) {
      add(group, row, kept);
    }
    float squares = 0;
#pragma unroll
    for (int k = 0; k < kKeptPacks<T>; ++k) {
#pragma unroll
      for (int j = 0; j < width; ++j) {
        squares += kept[k].at[j] * kept[k].at[j];
      }
    }
    const float inverse_rms = inverse_rms_of(group.sum(squares), call.size, call.eps);
    if (call.inverse_rms != nullptr && group.rank() == 0) {
      call.inverse_rms[row] = inverse_rms;
    }
#pragma unroll
    for (int k = 0; k < kKeptPacks<T>; ++k) {
      const int i = (k * group.size() + group.rank()) * width;
      const Values<width> weight = read<width>(call.weight, i, size);
#pragma unroll
      for (int j = 0; j < width; ++j) {
        kept[k].at[j] = factor.met(kept[k].at[j] * inverse_rms) * factor.of(weight.at[j]);
      }
      write(call.y + row * call.size, i, size, kept[k]);
    }
  }

 private:
  // Adds the branch to x in registers; the sum is rounded as it is written.
  template <class Group>
  LEHR_HOST_DEVICE void add(const Group& group, int64_t row, Values<kPack<T>> (&kept)[kKeptPacks<T>]) const {
    constexpr int width = kPack<T>;
    const int size = static_cast<int>(call.size);
#pragma unroll
    for (int k = 0; k < kKeptPacks<T>; ++k) {
      const int i = (k * group.size() + group.rank()) * width;
      const Values<width> branch = read<width>(call.branch + row * call.size, i, size);
#pragma unroll
      for (int j = 0; j < width; ++j) {
        kept[k].at[j] = rounded_to<T>(kept[k].at[j] + branch.at[j]);
      }
      write(call.sum + row * call.size, i, size, kept[k]);
    }
  }
};

/// Processes the rows index, index + groups, .... With h = x / rms and g = dy * factor: dx = (g - h mean(g h)) / rms
/// and dweight = sum of dy h. The rounding of h counts as the identity for dx. dx includes dsum.
template <class T>
struct RmsNormBackwardRows {
  RmsNormBackward<T> call;
  float* parts;  ///< (groups, size); null if not requested.
  int64_t rows;
  int64_t groups;

  template <class Group>
  LEHR_HOST_DEVICE void operator()(Group& group, int64_t index) const {
    constexpr int width = kPack<T>;
    const int size = static_cast<int>(call.size);
    const NormFactor<T> factor{call.zero_centered};
    const float mean_factor = 1 / static_cast<float>(call.size);
    Values<width> dweight[kKeptPacks<T>] = {};
    for (int64_t row = index; row < rows; row += groups) {
      const T* x = call.x + row * call.size;
      const T* dy = call.dy + row * call.size;
      const float inverse_rms = call.inverse_rms[row];
      Values<width> normalized[kKeptPacks<T>];
      Values<width> incoming[kKeptPacks<T>];
#pragma unroll
      for (int k = 0; k < kKeptPacks<T>; ++k) {
        const int i = (k * group.size() + group.rank()) * width;
        normalized[k] = read<width>(x, i, size);
        incoming[k] = read<width>(dy, i, size);
      }
      float sum = 0;
#pragma unroll
      for (int k = 0; k < kKeptPacks<T>; ++k) {
        const int i = (k * group.size() + group.rank()) * width;
        const Values<width> weight = read<width>(call.weight, i, size);
#pragma unroll
        for (int j = 0; j < width; ++j) {
          normalized[k].at[j] *= inverse_rms;
          dweight[k].at[j] += incoming[k].at[j] * factor.met(normalized[k].at[j]);
          incoming[k].at[j] *= factor.of(weight.at[j]);
          sum += incoming[k].at[j] * normalized[k].at[j];
        }
      }
      if (call.dx != nullptr) {
        const float mean = group.sum(sum) * mean_factor;
#pragma unroll
        for (int k = 0; k < kKeptPacks<T>; ++k) {
#pragma unroll
          for (int j = 0; j < width; ++j) {
            incoming[k].at[j] = (incoming[k].at[j] - normalized[k].at[j] * mean) * inverse_rms;
          }
          const int i = (k * group.size() + group.rank()) * width;
          if (call.dsum != nullptr) {
            const Values<width> dsum = read<width>(call.dsum + row * call.size, i, size);
#pragma unroll
            for (int j = 0; j < width; ++j) {
              incoming[k].at[j] += dsum.at[j];
            }
          }
          write(call.dx + row * call.size, i, size, incoming[k]);
        }
      }
    }
    if (parts != nullptr) {
#pragma unroll
      for (int k = 0; k < kKeptPacks<T>; ++k) {
        const int i = (k * group.size() + group.rank()) * width;
        write(parts + index * call.size, i, size, dweight[k]);
      }
    }
  }
};

/// Sums four columns of the parts of a weight's gradient in float64.
template <class T>
struct SumParts {
  static constexpr int kColumns = 4;
  WeightGradient<T> dweight;
  int64_t size;

  template <class Group>
  LEHR_HOST_DEVICE void operator()(Group& group, int64_t index) const {
    double sums[kColumns] = {};
    for (int64_t part = group.rank(); part < dweight.count; part += group.size()) {
      const Values<kColumns> values = read<kColumns>(dweight.parts + part * size, index * kColumns, size);
#pragma unroll
      for (int j = 0; j < kColumns; ++j) {
        sums[j] += static_cast<double>(values.at[j]);
      }
    }
#pragma unroll
    for (int j = 0; j < kColumns; ++j) {
      const double total = group.sum(sums[j]);
      if (group.rank() == 0) {
        dweight.sum[index * kColumns + j] = narrow<T>(static_cast<float>(total));
      }
    }
  }
};

/// Launches SumParts, unless the gradient is not wanted.
template <class T>
Status sum_parts(const WeightGradient<T>& dweight, int64_t size) {
  if (dweight.parts == nullptr) {
    return nullptr;
  }
  return Launch::blocks(SumParts<T>{dweight, size}, size / SumParts<T>::kColumns, dweight.count > 32 ? 128 : 32);
}

}  // namespace lehr::ops::cuda
