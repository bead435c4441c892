// Recomputation of activations in backward. The outputs of memory-bound operators (norms, rotary embeddings after them,
// SwiGLU's gate, and tokens sorted by expert) are not saved, but recomputed from tensors that are saved anyway. With
// selective activation checkpointing (https://arxiv.org/abs/2205.05198), matmul outputs are recomputed as well.
#pragma once

#include <functional>
#include <mutex>

#include "lehr/base/call_context.h"
#include "lehr/base/torch.h"

namespace lehr::ops {

/// Pre-hook of an autograd node that recomputes the node's output. The recomputed tensor is kept until the node's
/// backward, which runs after that of all readers of the tensor. After a backward pass has freed the node's graph, no
/// other pass can recompute the output: it fails as if it had reached the node.
class Recompute : public torch::autograd::FunctionPreHook {
 public:
  using Make = std::function<at::Tensor()>;

  /// `output` is the tensor that `make` recomputes, as the node returned it.
  Recompute(Make make, const at::Tensor& output)
      : make_(std::move(make)), output_nr_(output.output_nr()), version_(output._version()) {}
  /// The same in two parts, between which other operators may run: `start`, and then the function that it returns.
  Recompute(std::function<Make()> start, const at::Tensor& output)
      : start_(std::move(start)), output_nr_(output.output_nr()), version_(output._version()) {}

  /// Returns whether it recomputes `tensor`: this output of the node and no other, and not written to since.
  bool makes(const at::Tensor& tensor) const {
    return tensor.output_nr() == output_nr_ && tensor._version() == version_;
  }
  /// Begins a recomputation that has two parts; otherwise does nothing.
  void start();
  /// Returns the recomputed tensor, bit for bit the same, without a graph. Any thread may call it.
  at::Tensor tensor();
  torch::autograd::variable_list operator()(const torch::autograd::variable_list& grads) override;

 private:
  void start_locked();

  std::function<Make()> start_;  // null: a recomputation in one part
  Make make_;                    // with start_: the second part, after the first
  int64_t output_nr_;
  int64_t version_;
  std::mutex mutex_;
  at::Tensor made_;
};

/// Makes `output`, which an AutogradFunction's apply() has just returned, recomputable by `make(ctx)` from the
/// function's saved tensors. At most one output per function. Only for deterministic computations, which must also be
/// cheap compared with the matmul that reads the output, unless RecomputeMatmuls is on. Returns `output`.
at::Tensor recomputable(const at::Tensor& output, std::function<at::Tensor(torch::autograd::AutogradContext*)> make);

/// The same in two parts, for communication: `start(ctx)` starts it and returns a function that waits for the result.
at::Tensor recomputable_in_parts(
    const at::Tensor& output, std::function<Recompute::Make(torch::autograd::AutogradContext*)> start);

/// Selective activation checkpointing of matmuls: while an object that is on exists, outputs of this thread's matmuls
/// (linear and grouped_linear, in float8 too, and rotary embeddings of those) are recomputable too. That saves memory,
/// for up to 2/9 more FLOPs per layer: the projections to queries, keys, values, gate and up, including those of
/// experts, run twice per step. Output projections do not, since no backward reads their results.
class RecomputeMatmuls {
 public:
  explicit RecomputeMatmuls(bool on);

  /// Returns whether this thread's innermost object is on.
  static bool on();

 private:
  ContextScope<bool> scope_;
};

/// Makes a matmul's output recomputable by Function::recompute, if RecomputeMatmuls is on. Returns `output`.
template <class Function>
at::Tensor recomputable_matmul(const at::Tensor& output) {
  return RecomputeMatmuls::on() ? recomputable(output, Function::recompute) : output;
}

/// Returns whether backward can recompute `tensor`.
bool can_recompute(const at::Tensor& tensor);

/// For the forward of an autograd function: returns the tensor to save for an input that backward reads. It is
/// undefined if the input is recomputable; then `ctx` holds the input's node, under `name`.
at::Tensor save_or_recompute(torch::autograd::AutogradContext* ctx, const char* name, const at::Tensor& input);

/// Returns `tensor` without its recomputation: operators that read it save it. For readers whose backward may run while
/// the weights that `tensor` would be recomputed from are resharded.
at::Tensor without_recomputation(const at::Tensor& tensor);

/// save_or_recompute() for a matmul's input, which wgrad of `weight` and Function::recompute read. Undefined if neither
/// will run, as for a frozen weight.
at::Tensor save_operand(
    torch::autograd::AutogradContext* ctx, const char* name, const at::Tensor& input, const at::Tensor& weight);

/// For the backward of the same function: starts the communication by which saved_or_recomputed() recomputes the input,
/// if any, so that operators between the two calls overlap with it.
void start_recomputing(torch::autograd::AutogradContext* ctx, const char* name);

/// For the backward of the same function: returns the input that save_or_recompute() was called with, without a graph,
/// saved or recomputed. Undefined if save_operand() saved nothing. `saved` is the tensor that save_or_recompute()
/// returned.
at::Tensor saved_or_recomputed(torch::autograd::AutogradContext* ctx, const char* name, const at::Tensor& saved);

}  // namespace lehr::ops
