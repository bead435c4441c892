// Running operators on a GPU.
//
// The kernels are in a separate module, liblehr_cuda.so beside the program (every kernel.cu, built where CMake finds
// nvcc), which is opened when a run needs a GPU. Without the module CUDA tensors take the plain ATen definitions.
#pragma once

#include <string>
#include <vector>

#include "lehr/base/call_context.h"
#include "lehr/base/error.h"
#include "lehr/base/torch.h"
#include "lehr/ops/cuda/graph_functions.h"
#include "lehr/ops/cuda/slot.h"

namespace lehr::ops::cuda {

/// Opens the module once per process, after LibTorch's CUDA libraries. Returns "", or the reason why it has no kernels
/// and operators run in plain ATen: the module is not beside the program or cannot be opened, or the current GPU or its
/// driver does not run its code. Throws a usage error for a module that was built from other sources.
std::string open_kernels();

/// Returns the graph functions of the opened module; null without one.
const GraphFunctions* graph_functions();

/// Takes the next slot of all tables, for kernels of this identity and size.
size_t add_slot(const KernelId& id, size_t size);
/// The slot of a struct of kernels that the program uses; set when the program starts.
template <class Kernels>
inline const size_t kSlot = add_slot(Kernels::kId, sizeof(Kernels));

/// The kernels of all operators of the program.
class Table {
 public:
  /// Takes the kernels from a list that outlives the table. Throws a usage error if it lacks some that the program
  /// uses, or has another version of them.
  explicit Table(const Entry* entries);

  template <class Kernels>
  const Kernels& get() const {
    return *static_cast<const Kernels*>(slots_[kSlot<Kernels>]);
  }
  /// Replaces kernels by others, which must outlive the table. For tests.
  template <class Kernels>
  void set(const Kernels& kernels) {
    slots_[kSlot<Kernels>] = &kernels;
  }

 private:
  std::vector<const void*> slots_;
};

/// While it exists, this thread runs a table's kernels on tensors of another device. Tests use it to run the bodies of
/// kernels on the host.
class TableScope {
 public:
  TableScope(const Table& table, at::DeviceType device);

  const Table& table() const { return table_; }
  at::DeviceType device() const { return device_; }

 private:
  const Table& table_;
  at::DeviceType device_;
  ContextScope<const TableScope*> scope_;
};

/// True if the tensor is on a GPU, or on the device that a TableScope takes for one. Operators do not read its values
/// then: the host would wait for all work that the GPU was given before, and a step could not be recorded as a graph.
bool on_gpu(const at::Tensor& tensor);
/// True if there are kernels for tensors on its device.
bool has_kernels(const at::Tensor& tensor);
/// True if there are kernels for tensors like this one: on a device with a table, float32 or bfloat16.
bool supports(const at::Tensor& tensor);
/// Returns whether `supports` the tensor, and body(T{}) with its element type is true.
template <class Body>
bool with_type(const at::Tensor& tensor, const Body& body) {
  return supports(tensor) && (tensor.scalar_type() == at::kFloat ? body(float{}) : body(Bf16{}));
}

/// Calls body(T{}, an operator's kernels for T) with the element type of a tensor that `supports` accepts, with the
/// tensor's device as the current one. Throws a runtime error that names the operator if the body returns a Status that
/// is not null.
template <template <class> class Kernels, class Body>
void run(const char* name, const at::Tensor& like, const Body& body);

/// Returns the table of this thread; only valid where `supports` is true.
const Table& table();
/// Returns the number of calls of table(), which is at least one per launch: tests check by it that kernels
/// ran.
int64_t table_uses();
/// Throws a usage error unless all defined tensors are on one device.
void check_devices(const char* name, std::initializer_list<at::Tensor> tensors);
/// Returns the tensor, which must be contiguous, or a copy if its elements do not begin at a multiple of 16 bytes.
at::Tensor aligned_for_kernels(const at::Tensor& tensor);
void check_status(const char* name, Status status);

template <template <class> class Kernels, class Body>
void run(const char* name, const at::Tensor& like, const Body& body) {
  const c10::DeviceGuard guard(like.device());
  const bool narrow = like.scalar_type() == at::kBFloat16;
  check_status(
      name, narrow ? body(Bf16{}, table().get<Kernels<Bf16>>()) : body(float{}, table().get<Kernels<float>>()));
}

}  // namespace lehr::ops::cuda
