// Launches bodies of kernels on the current device and stream. For nvcc alone.
#pragma once

#include <cuda_runtime_api.h>

#include "lehr/ops/cuda/portable.h"

namespace lehr::ops::cuda {

/// The stream of ATen's that this thread works on (module.cpp).
cudaStream_t current_stream();

/// `size` threads of one warp, a power of two of them.
class WarpGroup {
 public:
  __device__ explicit WarpGroup(int64_t size)
      : rank_(static_cast<int>(threadIdx.x) & (static_cast<int>(size) - 1)),
        size_(static_cast<int>(size)),
        mask_((size == 32 ? ~0u : (1u << size) - 1) << ((threadIdx.x & 31) - static_cast<unsigned>(rank_))) {}
  __device__ int rank() const { return rank_; }
  __device__ int size() const { return size_; }

  template <class X>
  __device__ X sum(X x) const {
    for (int offset = size_ / 2; offset > 0; offset /= 2) {
      x += __shfl_xor_sync(mask_, x, offset);
    }
    return x;
  }
  __device__ float max(float x) const {
    for (int offset = size_ / 2; offset > 0; offset /= 2) {
      x = fmaxf(x, __shfl_xor_sync(mask_, x, offset));
    }
    return x;
  }

 private:
  int rank_;
  int size_;
  unsigned mask_;
};

/// A whole block of whole warps.
class BlockGroup {
 public:
  static constexpr int kMostWarps = static_cast<int>(kMostThreads / 32);
  /// Two, taken in turns: who writes one again has passed the barrier behind which all have read it.
  struct Shared {
    double turn[2][kMostWarps];
  };

  __device__ explicit BlockGroup(Shared& shared) : shared_(shared) {}
  __device__ int rank() const { return static_cast<int>(threadIdx.x); }
  __device__ int size() const { return static_cast<int>(blockDim.x); }

  template <class X>
  __device__ X sum(X x) {
    X* const warps = share(WarpGroup(32).sum(x));
    X total = 0;
    for (unsigned warp = 0; warp < blockDim.x / 32; ++warp) {
      total += warps[warp];
    }
    return total;
  }
  __device__ float max(float x) {
    float* const warps = share(WarpGroup(32).max(x));
    float most = warps[0];
    for (unsigned warp = 1; warp < blockDim.x / 32; ++warp) {
      most = fmaxf(most, warps[warp]);
    }
    return most;
  }

 private:
  template <class X>
  __device__ X* share(X of_warp) {
    X* const warps = reinterpret_cast<X*>(shared_.turn[turn_]);
    turn_ ^= 1;
    if (threadIdx.x % 32 == 0) {
      warps[threadIdx.x / 32] = of_warp;
    }
    __syncthreads();
    return warps;
  }

  Shared& shared_;
  int turn_ = 0;
};

constexpr int kWarpsThreads = 256;  // of a block that holds many groups

template <class Body>
__global__ __launch_bounds__(kWarpsThreads, 2) void in_warps(
    const __grid_constant__ Body body, int64_t count, int size) {
  const int64_t index = (static_cast<int64_t>(blockIdx.x) * kWarpsThreads + threadIdx.x) / size;
  if (index < count) {
    WarpGroup group(size);
    body(group, index);
  }
}

template <class Body>
__global__ __launch_bounds__(kMostThreads) void in_blocks(const __grid_constant__ Body body) {
  __shared__ BlockGroup::Shared shared;
  BlockGroup group(shared);
  body(group, static_cast<int64_t>(blockIdx.x));
}

/// How kernels are launched on a GPU; see fill_norms.h.
struct DeviceLaunch {
  template <class Body>
  static Status warps(const Body& body, int64_t count, int64_t threads) {
    const int64_t blocks = (count * threads + kWarpsThreads - 1) / kWarpsThreads;
    if (blocks <= 0) {
      return nullptr;
    }
    in_warps<<<static_cast<unsigned>(blocks), kWarpsThreads, 0, current_stream()>>>(
        body, count, static_cast<int>(threads));
    return status();
  }

  template <class Body>
  static Status blocks(const Body& body, int64_t count, int64_t threads) {
    if (count <= 0) {
      return nullptr;
    }
    in_blocks<<<static_cast<unsigned>(count), static_cast<unsigned>(threads), 0, current_stream()>>>(body);
    return status();
  }

  template <class Body>
  static Status groups(const Body& body, int64_t count, int64_t threads) {
    return threads <= 32 ? warps(body, count, threads) : blocks(body, count, threads);
  }

 private:
  static Status status() {
    const cudaError_t error = cudaGetLastError();
    return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
  }
};

}  // namespace lehr::ops::cuda
