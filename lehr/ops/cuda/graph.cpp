// CUDA graphs, by LibTorch's at::cuda::CUDAGraph, which keeps the memory of captured work in a pool of its own.
#include <ATen/core/CachingHostAllocator.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>

#include <memory>

#include "lehr/ops/cuda/graph_functions.h"

namespace {
using at::cuda::CUDAGraph;

struct Graph {
  CUDAGraph graph;
  c10::DeviceIndex device = c10::cuda::current_device();
  c10::MempoolId_t pool = at::cuda::graph_pool_handle();
};

template <class Do>
bool succeeds(const Do& action) {
  try {
    action();
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

// CUDAGraph releases its pools only if its capture succeeded (PyTorch's pull requests 180395 and 190308). Otherwise
// the allocators would keep asking it at every request whether the request is for the pool, even after its
// destruction.
void abandon(void* given) {
  const std::unique_ptr<Graph> owned(static_cast<Graph*>(given));
  CUDAGraph& graph = owned->graph;
  const auto owns_pool = [&] { return succeeds([&] { graph.pool(); }); };
  // capture_end() takes the stream out of the capture even if it throws.
  if (owns_pool() || succeeds([&] { graph.capture_end(); }) || owns_pool()) {
    return;
  }
  const auto device = owned->device;
  const auto pool = owned->pool;
  at::HostAllocator* const host = at::getHostAllocator(at::kCUDA);
  // Each call throws if the capture, or its end, did not get as far, or had done it already.
  succeeds([&] { c10::cuda::CUDACachingAllocator::endAllocateToPool(device, pool); });
  succeeds([&] { c10::cuda::CUDACachingAllocator::releasePool(device, pool); });
  succeeds([&] { host->end_allocate_to_pool(pool); });
  succeeds([&] { host->release_pool(pool); });
}

void* begin() {
  // Work that is pending on other streams must not use the recording's memory.
  c10::cuda::device_synchronize();
  // A recording's memory comes from its own pool, which reuses none of the memory that was freed before.
  c10::cuda::CUDACachingAllocator::emptyCache();
  auto graph = std::make_unique<Graph>();
  try {
    // The threads of the backward pass and of the data loader may do things that a capture in global mode would forbid.
    graph->graph.capture_begin(graph->pool, cudaStreamCaptureModeThreadLocal);
  } catch (...) {
    abandon(graph.release());
    throw;
  }
  return graph.release();
}

void end(void* graph) {
  static_cast<Graph*>(graph)->graph.capture_end();
}

void replay(void* graph) {
  static_cast<Graph*>(graph)->graph.replay();
}

void destroy(void* graph) {
  const std::unique_ptr<Graph> owned(static_cast<Graph*>(graph));
}

constexpr lehr::ops::cuda::GraphFunctions kFunctions = {begin, end, abandon, replay, destroy};
const lehr::ops::cuda::Registered kEntry(kFunctions);
}  // namespace
