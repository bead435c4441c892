// Split backward: dgrad first, wgrad later, for zero-bubble pipeline schedules (Qi et al.,
// https://arxiv.org/abs/2401.10241, where they are B and W).
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "lehr/base/call_context.h"
#include "lehr/base/torch.h"

namespace lehr::ops {

/// The deferred weight gradients of one micro-batch in one pipeline stage.
///
///     const auto wgrads = std::make_shared<WeightGradients>();
///     {
///       const WeightGradients::Scope scope(wgrads);
///       outputs = forward(inputs);
///     }
///     wgrads->backward_input({outputs}, {gradients});  // dgrad: now inputs.grad() can be sent
///     ...                                              // other micro-batches, in any order
///     wgrads->backward_weight();                       // wgrad: the weights' .grad() are as after one backward
///
/// In forward, operators with weight matrices (`linear`, `grouped_linear`) save a reference to the current object. In
/// `backward_input` they compute only the gradient of their input, and add the matmul of wgrad to this object. Every
/// other gradient (norms, biases, tables, and weights that were cast, sliced or multiplied before the operator) is
/// computed and accumulated immediately. `backward_weight` runs the matmuls, sums those of one weight, and passes each
/// sum to autograd at the weight, so that accumulation, hooks and nodes before the weight work as usual. The graph is
/// not traversed a second time: a weight may be used many times, be shared, be frozen, or not depend on the stage's
/// inputs.
///
/// A tensor hook on a weight runs in both passes, first with an undefined gradient, as for any weight that a backward
/// pass does not reach.
///
/// If neither pass ran, an ordinary backward of the same graph is possible; it defers nothing. After the object is
/// destroyed, operators that refer to it compute everything immediately. Gradients are not lost silently: if an object
/// with deferred gradients is destroyed (except by an exception), the next use on that thread throws.
///
/// All calls must come from one thread, but `backward_input` may run operators on autograd's threads. Must be owned by
/// a shared_ptr.
class WeightGradients {
 public:
  /// Returns a weight's gradient, as a tensor that nothing else refers to.
  using Product = std::function<at::Tensor()>;

  WeightGradients();
  ~WeightGradients();
  WeightGradients(const WeightGradients&) = delete;
  WeightGradients& operator=(const WeightGradients&) = delete;

  /// Sets this thread's current object, null for none, until destroyed. Throws a usage error if gradients were lost on
  /// this thread.
  class Scope {
   public:
    explicit Scope(std::shared_ptr<WeightGradients> current);

   private:
    std::shared_ptr<WeightGradients> current_;
    ContextScope<const std::shared_ptr<WeightGradients>*> scope_;
  };
  static std::shared_ptr<WeightGradients> current();

  /// Runs dgrad: torch::autograd::backward(outputs, gradients), which frees the graph. Throws a usage error on a second
  /// call. If an exception is thrown, the deferred gradients are discarded.
  void backward_input(const std::vector<at::Tensor>& outputs, const std::vector<at::Tensor>& gradients = {});
  /// The same from edges of the graph, whose tensors may no longer exist. Without edges there is nothing to compute.
  void backward_input(const torch::autograd::edge_list& roots, const std::vector<at::Tensor>& gradients);
  /// Runs wgrad. Call it once, after backward_input; throws a usage error otherwise. Frees the operands of each matmul
  /// after it.
  void backward_weight();
  /// Discards the micro-batch, after a failure elsewhere.
  void discard() noexcept;
  /// Returns the number of deferred matmuls.
  size_t size() const;

  /// @name For operators, and for nodes before weights
  /// @{

  /// Returns whether dgrad is running, so that wgrad must be deferred.
  bool defers() const { return state_ == State::dgrad; }
  /// Returns whether wgrad of this weight may be deferred: it is a leaf, or an output of a node that was allowed to run
  /// in both passes.
  bool may_defer(const at::Tensor& weight) const;
  /// Permits to defer weights that are outputs of `node`. In dgrad the node runs with the gradients that are not
  /// deferred, in wgrad with the others, possibly several times; not at all if there are none.
  void allow(const std::shared_ptr<torch::autograd::Node>& node);
  /// Defers `product`, the matmul of the gradient of `weight`.
  void add(const at::Tensor& weight, Product product);
  /// Calls `done` in wgrad, after all gradients that were added before it have been accumulated.
  void then(std::function<void()> done);
  /// @}

 private:
  void run_dgrad(const std::function<void()>& backward);
  enum class State { forward, dgrad, between, done };
  struct Step {
    at::Tensor weight;
    Product product;
    std::function<void()> done;  // set instead of the two
  };
  void run(std::vector<Step> steps);

  State state_ = State::forward;
  mutable std::mutex mutex_;
  std::vector<Step> steps_;
  size_t products_ = 0;
  std::unordered_map<const torch::autograd::Node*, std::weak_ptr<torch::autograd::Node>> allowed_;
  int exceptions_;  // std::uncaught_exceptions() at construction
};

/// For the forward of an autograd function with a weight: saves a reference to the current WeightGradients for
/// `weight_gradient`.
void note_weight_gradients(torch::autograd::AutogradContext* ctx, const at::Tensor& weight);

/// For its backward: returns the gradient of weight; undefined if it was deferred. `product` must not hold tensors with
/// a graph (detach saved tensors), and must not read the weight's values, which may be resharded by then.
at::Tensor weight_gradient(
    torch::autograd::AutogradContext* ctx, const at::Tensor& weight, WeightGradients::Product product);

}  // namespace lehr::ops
