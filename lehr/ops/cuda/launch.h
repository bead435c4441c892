// Launches bodies of kernels on the current device and stream. Compiled by nvcc only.
#pragma once

#include <cuda_runtime_api.h>

#include "lehr/ops/cuda/portable.h"

namespace lehr::ops::cuda {

/// Returns ATen's current stream of this thread (module.cpp).
cudaStream_t current_stream();

/// A group of `size` threads of one warp, where size is a power of two.
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

/// A group that is a whole block of whole warps.
class BlockGroup {
 public:
  static constexpr int kMostWarps = static_cast<int>(kMostThreads / 32);
  /// Two buffers, used in turns: a thread that writes one again has passed the barrier after which all threads have
  /// read it.
  struct Shared {
    double turn[2][kMostWarps];
  };

  __device__ BlockGroup(Shared& shared, void* scratch) : shared_(shared), scratch_(scratch) {}
  __device__ int rank() const { return static_cast<int>(threadIdx.x); }
  __device__ int size() const { return static_cast<int>(blockDim.x); }
  __device__ void* scratch() const { return scratch_; }
  __device__ void sync() const { __syncthreads(); }

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
  void* scratch_;
  int turn_ = 0;
};

constexpr int kWarpsThreads = 256;  // per block with many groups

/// Runs a body by groups of `size` threads, each a part of a warp.
template <class Body>
__global__ __launch_bounds__(kWarpsThreads, 2) void in_warps(
    const __grid_constant__ Body body, int64_t count, int size) {
  const int64_t index = (static_cast<int64_t>(blockIdx.x) * kWarpsThreads + threadIdx.x) / size;
  if (index < count) {
    WarpGroup group(size);
    body(group, index);
  }
}

/// Runs a body by groups that are blocks.
template <class Body>
__global__ __launch_bounds__(kMostThreads) void in_blocks(const __grid_constant__ Body body) {
  __shared__ BlockGroup::Shared shared;
  extern __shared__ __align__(16) unsigned char scratch[];
  BlockGroup group(shared, scratch);
  body(group, static_cast<int64_t>(blockIdx.x));
}

/// Launches kernels on a GPU; see kernel.h.
struct DeviceLaunch {
  /// Bytes of `scratch` that need no opt-in: with BlockGroup's own they stay below the 48 KiB that any block may use.
  static constexpr int64_t kPlainScratch = 40 << 10;

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

  /// Each group gets `scratch` bytes of shared memory, at most most_scratch().
  template <class Body>
  static Status blocks(const Body& body, int64_t count, int64_t threads, int64_t scratch = 0) {
    if (count <= 0) {
      return nullptr;
    }
    if (scratch > kPlainScratch) {
      cudaFuncSetAttribute(in_blocks<Body>, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(scratch));
    }
    in_blocks<<<
        static_cast<unsigned>(count),
        static_cast<unsigned>(threads),
        static_cast<size_t>(scratch),
        current_stream()>>>(body);
    return status();
  }

  /// Returns the bytes of shared memory that a block of the current device may use in addition to BlockGroup's own.
  static int64_t most_scratch() {
    int device = 0;
    int most = 0;
    if (cudaGetDevice(&device) != cudaSuccess ||
        cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device) != cudaSuccess) {
      return 0;
    }
    return (most - static_cast<int64_t>(sizeof(BlockGroup::Shared))) / 16 * 16;
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

using Launch = DeviceLaunch;

}  // namespace lehr::ops::cuda
