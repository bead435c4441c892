// The fused forms of the operators for CUDA tensors, as cpu.h has them for the CPU; fast.h chooses between the two.
//
// The kernels lie in a module of their own, liblehr_cuda.so beside the program (ops/cuda/, built where CMake finds
// nvcc), which is opened when a run wants a GPU. Where it is missing, CUDA tensors take the plain ATen definitions.
#pragma once

#include <string>
#include <tuple>
#include <vector>

#include "lehr/base/error.h"
#include "lehr/base/torch.h"
#include "lehr/ops/cpu.h"
#include "lehr/ops/cuda/table.h"

namespace lehr::ops::cuda {

/// Opens the module once for the process, after LibTorch's CUDA half. Returns "", or why there are no kernels and
/// operators run as plain ATen: the module is not beside the program or cannot be opened, or the current GPU or its
/// driver does not run what it holds. Throws a usage error for a module that was built from other sources.
std::string open_kernels();

/// Those of the module that was opened; null if none was.
const GraphFunctions* graph_functions();

/// The table as it is if the program and the module agree about it. Throws a usage error if not.
const Table& checked_table(const Table& table);

/// While one lives, this thread runs a table's kernels on tensors of another device: how tests run the loops of kernels
/// on the host.
class TableScope {
 public:
  TableScope(const Table& table, at::DeviceType device);
  ~TableScope();
  TableScope(const TableScope&) = delete;
  TableScope& operator=(const TableScope&) = delete;

  struct Use {
    const Table* table;
    at::DeviceType device;
  };

 private:
  Use before_;
};

/// Whether it lies on a GPU, or on the device that a TableScope takes for one. Operators do not look at its numbers
/// then: the host would wait for all that the GPU was given before, and a step could not be recorded as a graph.
bool on_gpu(const at::Tensor& tensor);
/// Whether there are kernels for tensors like this one: on a device with a table, float32 or bfloat16.
bool supports(const at::Tensor& tensor);
/// Whether the kernels of norms take its rows.
bool supports_rows(const at::Tensor& tensor);
/// Whether those of rotations take its heads, of which `rotated` elements turn; if `normalized`, behind a norm.
bool supports_rotation(const at::Tensor& tensor, int64_t rotated, bool normalized);

/// @name As in cpu.h
/// @{

std::tuple<at::Tensor, at::Tensor> rms_norm_forward(
    const at::Tensor& x,
    const at::Tensor& weight,
    double eps,
    NormWeight kind,
    bool keep,
    const cpu::Added& added = {});
std::tuple<at::Tensor, at::Tensor> rms_norm_backward(
    const at::Tensor& dy,
    const at::Tensor& x,
    const at::Tensor& weight,
    const at::Tensor& inverse_rms,
    NormWeight kind,
    cpu::Wanted wanted,
    const at::Tensor& dsum = {});
at::Tensor rotary(const at::Tensor& x, const cpu::Angles& angles, bool backward);
std::tuple<at::Tensor, at::Tensor> norm_rotary_forward(
    const at::Tensor& x, const at::Tensor& weight, double eps, NormWeight kind, const cpu::Angles& angles, bool keep);
std::tuple<at::Tensor, at::Tensor> norm_rotary_backward(
    const at::Tensor& dy,
    const at::Tensor& x,
    const at::Tensor& weight,
    const at::Tensor& inverse_rms,
    NormWeight kind,
    const cpu::Angles& angles,
    cpu::Wanted wanted);
at::Tensor silu_mul_forward(const at::Tensor& gate, const at::Tensor& up);
std::tuple<at::Tensor, at::Tensor> silu_mul_backward(
    const at::Tensor& dy, const at::Tensor& gate, const at::Tensor& up, bool want_gate, bool want_up);
void cross_entropy_(
    const at::Tensor& logits,
    const at::Tensor& labels,
    const at::Tensor& losses,
    bool gradient,
    const at::Tensor& row_scale = {});
/// @}

/// The sum of all squares as a float64 scalar on the tensors' device; all of one device, `supports` and dense. Its
/// order depends on the shapes alone, and nothing is read back.
at::Tensor sum_of_squares(const std::vector<at::Tensor>& tensors);
/// Multiplies them in place; tensors as above.
void scale_(const std::vector<at::Tensor>& tensors, const at::Tensor& factor);

/// Rows of tokens (N, H) in sorted order, (N*k, H), for `order` of a TokenPermutation.
at::Tensor copy_tokens(const at::Tensor& tokens, const at::Tensor& order);
/// The sums of each token's rows of `sorted`, times weights (N, k) unless they are undefined; `inverse` of a
/// TokenPermutation with k choices a token.
at::Tensor sum_copies(const at::Tensor& sorted, const at::Tensor& weights, const at::Tensor& inverse, int64_t choices);
/// Gradients of sum_copies for sorted and weights.
std::tuple<at::Tensor, at::Tensor> sum_copies_backward(
    const at::Tensor& dout,
    const at::Tensor& sorted,
    const at::Tensor& weights,
    const at::Tensor& inverse,
    cpu::Wanted wanted);

/// Calls body(T{}, kernels of T) with the element type of a tensor that `supports`, with the tensor's device as the
/// current one. The body returns a Status; throws a runtime error that names the operator if that is one.
template <class Body>
void run(const char* name, const at::Tensor& like, const Body& body);

/// The table in use on this thread; only where `supports` says so.
const Table& table();
/// How often this thread has asked for it, which is at least once a launch: how tests see that kernels ran.
int64_t table_uses();
/// Throws a usage error unless the defined ones among the tensors are on one device.
void check_devices(const char* name, std::initializer_list<at::Tensor> tensors);
/// The tensor, or a copy where its elements do not begin at a multiple of 16 bytes. Contiguous already.
at::Tensor aligned_for_kernels(const at::Tensor& tensor);
void check_status(const char* name, Status status);

template <class Body>
void run(const char* name, const at::Tensor& like, const Body& body) {
  const c10::DeviceGuard guard(like.device());
  const bool narrow = like.scalar_type() == at::kBFloat16;
  check_status(name, narrow ? body(Bf16{}, table().bf16) : body(float{}, table().f32));
}

}  // namespace lehr::ops::cuda
