// CUDA graphs, by LibTorch's at::cuda::CUDAGraph: it keeps the memory of what is recorded in a pool of its own.
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>

#include <memory>

#include "lehr/ops/cuda/table.h"

namespace {
using at::cuda::CUDAGraph;

void* record(void (*work)(void*), void* context) {
  auto graph = std::make_unique<CUDAGraph>();
  // What was given to other streams must not meet the recording's memory; and CUDA records no default stream.
  c10::cuda::device_synchronize();
  // A recording's memory comes from a pool of its own, which takes nothing of what was freed before.
  c10::cuda::CUDACachingAllocator::emptyCache();
  const c10::cuda::CUDAStreamGuard stream(c10::cuda::getStreamFromPool());
  // Threads of the backward pass and of the data may do what a recording of the whole process would forbid.
  graph->capture_begin({0, 0}, cudaStreamCaptureModeThreadLocal);
  try {
    work(context);
  } catch (...) {
    try {
      graph->capture_end();
    } catch (const std::exception&) {
      // A broken recording cannot be ended; what broke it says more. The allocator goes on asking it.
      static_cast<void>(graph.release());
    }
    throw;
  }
  graph->capture_end();
  return graph.release();
}

void replay(void* graph) {
  static_cast<CUDAGraph*>(graph)->replay();
}

void destroy(void* graph) {
  const std::unique_ptr<CUDAGraph> owned(static_cast<CUDAGraph*>(graph));
}
}  // namespace

extern "C" __attribute__((visibility("default"))) const lehr::ops::cuda::GraphFunctions* lehr_cuda_graphs();

extern "C" const lehr::ops::cuda::GraphFunctions* lehr_cuda_graphs() {
  static constexpr lehr::ops::cuda::GraphFunctions functions = {record, replay, destroy};
  return &functions;
}
