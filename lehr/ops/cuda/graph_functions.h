// The functions of CUDA graphs, which the module has and the program calls.
#pragma once

#include "lehr/ops/cuda/slot.h"

namespace lehr::ops::cuda {

/// CUDA graphs of the current device (ops/recorded_work.h). The functions throw LibTorch's exceptions.
struct GraphFunctions {
  static constexpr KernelId kId = {"CUDA graphs", 0, 1};
  /// Waits for the device, then begins to capture the work of the current stream, which must not be the default stream.
  /// Memory that is allocated during the capture comes from a pool of the graph.
  void* (*begin)();
  void (*end)(void* graph);      ///< On the stream of begin().
  void (*abandon)(void* graph);  ///< Replaces end(), or follows an end() that threw; frees the graph and its pool.
  void (*replay)(void* graph);   ///< On the current stream; after end().
  void (*destroy)(void* graph);
};

}  // namespace lehr::ops::cuda
