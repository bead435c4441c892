// Backward in two halves: the gradients of a stage's inputs now, those of its weights later, as the schedules of
// pipelines without bubbles need it (Qi et al., https://arxiv.org/abs/2401.10241).
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "lehr/base/torch.h"

namespace lehr::ops {

/// The weight gradients of one microbatch in one stage of a pipeline.
///
///     const auto halves = std::make_shared<WeightGradients>();
///     {
///       const WeightGradients::Scope scope(halves);
///       outputs = forward(inputs);
///     }
///     halves->backward_input({outputs}, {gradients});  // now inputs.grad() can be sent
///     ...                                              // other microbatches, in any order
///     halves->backward_weight();                       // the weights' .grad() are as after one backward
///
/// Operators with weight matrices (`linear`, `grouped_linear`) note in forward which of these is current. In
/// `backward_input` they compute the gradient of their input only, and leave here what the weight's takes: a product.
/// Every other gradient (norms, biases, tables, and weights that were cast, cut or multiplied before they came to the
/// operator) is computed and accumulated at once. `backward_weight` computes the products, adds up those of one weight,
/// and hands each sum to autograd at the weight, so that accumulation, hooks and whatever stands behind the weight see
/// what they always see. There is no walk through the graph: a weight may be used many times, be shared, frozen, or
/// have nothing to do with the stage's inputs.
///
/// A tensor hook on a weight runs in both halves, first with an undefined gradient, as with any weight that a backward
/// pass does not reach.
///
/// A usual backward of the same graph may be done instead, if neither half was; it defers nothing. Once the object is
/// gone, operators that noted it compute everything at once. Gradients are not lost silently: an object that goes while
/// some wait here (but for an exception) makes the next use on that thread an error.
///
/// All calls come from one thread, but `backward_input` may run operators on autograd's threads. Always held by a
/// shared_ptr.
class WeightGradients {
 public:
  /// Gives a weight's gradient, as a tensor that nobody else has.
  using Product = std::function<at::Tensor()>;

  WeightGradients();
  ~WeightGradients();
  WeightGradients(const WeightGradients&) = delete;
  WeightGradients& operator=(const WeightGradients&) = delete;

  /// Makes one the current one of this thread while it lives; null for none. Throws a usage error if gradients were
  /// lost on this thread.
  class Scope {
   public:
    explicit Scope(std::shared_ptr<WeightGradients> current);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    std::shared_ptr<WeightGradients> before_;
  };
  static std::shared_ptr<WeightGradients> current();

  /// The input half: torch::autograd::backward(outputs, gradients), which frees the graph. Once; throws a usage error
  /// otherwise. After an exception nothing is left to do.
  void backward_input(const std::vector<at::Tensor>& outputs, const std::vector<at::Tensor>& gradients = {});
  /// The same from places in the graph, whose tensors may be gone. Without any there is nothing to compute.
  void backward_input(const torch::autograd::edge_list& roots, const std::vector<at::Tensor>& gradients);
  /// The weight half. Once, after the input half; throws a usage error otherwise. Memory that was kept for a product is
  /// freed after it.
  void backward_weight();
  /// Forgets the microbatch, after a failure elsewhere.
  void discard() noexcept;
  /// How many products wait.
  size_t size() const;

  /// @name For operators, and for what stands behind weights
  /// @{

  /// Whether the input half is running, so that gradients of weights are to be left here.
  bool defers() const { return state_ == State::input_half; }
  /// Whether the gradient of this weight may come later: it is a leaf, or the output of a node that was allowed to run
  /// once for each half.
  bool may_defer(const at::Tensor& weight) const;
  /// From now on weights that are outputs of `node` may be deferred. In the input half the node runs with the gradients
  /// that are not; in the weight half with the others, perhaps several times; never if there are none.
  void allow(const std::shared_ptr<torch::autograd::Node>& node);
  void add(const at::Tensor& weight, Product product);
  /// Calls `done` in the weight half, once everything that is here by now was handed over.
  void then(std::function<void()> done);
  /// @}

 private:
  void input_half(const std::function<void()>& backward);
  enum class State { forward, input_half, between, done };
  struct Step {
    at::Tensor weight;
    Product product;
    std::function<void()> done;  // instead of the two
  };
  void run(std::vector<Step> steps);

  State state_ = State::forward;
  mutable std::mutex mutex_;
  std::vector<Step> steps_;
  size_t products_ = 0;
  std::unordered_map<const torch::autograd::Node*, std::weak_ptr<torch::autograd::Node>> allowed_;
  int exceptions_;  // under way when this was made
};

/// In the forward of an autograd function with a weight: notes the current WeightGradients for `weight_gradient`.
void note_weight_gradients(torch::autograd::AutogradContext* ctx, const at::Tensor& weight);

/// In its backward: the weight's gradient; undefined if it was left to the weight half. `product` must not hold tensors
/// with a graph (detach what was saved), and must not read the weight's values, which may be gone by then.
at::Tensor weight_gradient(
    torch::autograd::AutogradContext* ctx, const at::Tensor& weight, WeightGradients::Product product);

}  // namespace lehr::ops
