// Activations that one pass over memory makes are not kept for backward, but made again there from what is kept anyway:
// outputs of norms, of rotations behind them, of SwiGLU's gate, and tokens in the order of their experts; where asked
// for, outputs of matrix products as well.
#pragma once

#include <functional>
#include <mutex>

#include "lehr/base/torch.h"

namespace lehr::ops {

/// On the node that made a tensor: how to make it again. What was made stays until that node's backward, which comes
/// after that of all who read the tensor. A backward pass that frees the node's graph ends that for other passes, too:
/// they fail as if they had come through the node.
class Remaker : public torch::autograd::FunctionPreHook {
 public:
  /// `output` is the tensor, as the node has just given it.
  Remaker(std::function<at::Tensor()> make, const at::Tensor& output)
      : make_(std::move(make)), output_nr_(output.output_nr()), version_(output._version()) {}

  /// Whether it makes `tensor`, a result of its node: not another of them, and not what was written to since.
  bool makes(const at::Tensor& tensor) const {
    return tensor.output_nr() == output_nr_ && tensor._version() == version_;
  }
  /// The tensor, with the bits that it had; without a graph. Any thread.
  at::Tensor tensor();
  torch::autograd::variable_list operator()(const torch::autograd::variable_list& grads) override;

 private:
  std::function<at::Tensor()> make_;
  int64_t output_nr_;
  int64_t version_;
  std::mutex mutex_;
  at::Tensor made_;
};

/// Lets `output`, which Function::apply has just given, be made again by `make(ctx)`, from what the function saved; one
/// of a function's outputs at most.
/// Only for what has the same bits each time, and costs little beside the product that reads it or was asked for
/// (RemakeProducts). Gives `output`.
template <class Function, class Make>
at::Tensor remade_by(const at::Tensor& output, const Make& make) {
  auto* const node = static_cast<torch::autograd::CppNode<Function>*>(output.grad_fn().get());
  node->add_pre_hook(std::make_unique<Remaker>([node, make] { return make(&node->ctx_); }, output));
  return output;
}

/// While one lives, what this thread's products give (linear, linear_float8, grouped_linear, and rotations of that) can
/// be made again, too: less memory for up to two ninths more operations of a layer. Projections to queries, keys,
/// values, gates and channels are then made twice in a step, and those of experts; what else is added to the residual
/// stream is read by no backward.
class RemakeProducts {
 public:
  explicit RemakeProducts(bool on);
  ~RemakeProducts();
  RemakeProducts(const RemakeProducts&) = delete;
  RemakeProducts& operator=(const RemakeProducts&) = delete;

  /// Whether one that is on lives in this thread, the innermost.
  static bool on();

 private:
  bool before_;
};

/// remade_by() with Function::again, where products are to be.
template <class Function>
at::Tensor remade_product(const at::Tensor& output) {
  return RemakeProducts::on() ? remade_by<Function>(output, Function::again) : output;
}

/// Whether backward can make `tensor` again.
bool can_be_made_again(const at::Tensor& tensor);

/// In the forward of an autograd function: what to save of an input that its backward reads; nothing if the input can
/// be made again. `name` tells the function's inputs apart.
at::Tensor keep(torch::autograd::AutogradContext* ctx, const char* name, const at::Tensor& input);

/// keep() in a product's forward: the gradient of `weight` reads the input, and so does Function::again. Nothing if
/// there will be neither, as with a frozen weight.
at::Tensor keep_operand(
    torch::autograd::AutogradContext* ctx, const char* name, const at::Tensor& input, const at::Tensor& weight);

/// In its backward: that input, without a graph, kept or made again; undefined if it was. `saved` is what keep() gave.
at::Tensor kept(torch::autograd::AutogradContext* ctx, const char* name, const at::Tensor& saved);

}  // namespace lehr::ops
