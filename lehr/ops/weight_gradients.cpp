#include "lehr/ops/weight_gradients.h"

#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/engine.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "lehr/base/autograd_function.h"
#include "lehr/base/error.h"
#include "lehr/meter/operator_profile.h"

namespace lehr::ops {

namespace {
const ContextSlot<const std::shared_ptr<WeightGradients>*> kCurrent("weight gradients");  // owned by the scope

// Deferred gradients of objects that were destroyed before wgrad on this thread; no scope.
thread_local size_t t_lost = 0;

void require_none_lost() {
  const size_t lost = std::exchange(t_lost, 0);
  require(
      lost == 0,
      "weight gradients: {} of an earlier micro-batch were never computed; call backward_weight() after every "
      "backward_input(), or discard() after a failure",
      lost);
}

// Saved in an autograd context. The reference is weak: deferred matmuls own tensors of the graph, so a strong one would
// close a cycle.
struct Noted : torch::CustomClassHolder {
  explicit Noted(std::weak_ptr<WeightGradients> where) : gradients(std::move(where)) {}
  std::weak_ptr<WeightGradients> gradients;
};
constexpr const char* kNote = "weight_gradients";

// Gradients of the weights that one node produced, which it receives together: the outputs of an allowed node, or one
// leaf.
struct Behind {
  size_t to_come = 0;
  std::vector<at::Tensor> weights = {};
  std::vector<at::Tensor> gradients = {};

  void add(const at::Tensor& weight, const at::Tensor& gradient) {
    const auto found =
        std::find_if(weights.begin(), weights.end(), [&](const at::Tensor& known) { return known.is_same(weight); });
    if (found == weights.end()) {
      weights.push_back(weight);
      gradients.push_back(gradient);
    } else {
      gradients[static_cast<size_t>(found - weights.begin())].add_(gradient);
    }
  }
};

// Returns the key of a weight's group. A leaf is its own group: its AccumulateGrad node may be recreated at any time,
// so its address is no key.
const void* behind(const at::Tensor& weight) {
  return weight.is_leaf() ? static_cast<const void*>(weight.unsafeGetTensorImpl()) : weight.grad_fn().get();
}
}  // namespace

WeightGradients::WeightGradients() : exceptions_(std::uncaught_exceptions()) {}

WeightGradients::~WeightGradients() {
  if (std::uncaught_exceptions() <= exceptions_) {
    t_lost += products_;
  }
}

WeightGradients::Scope::Scope(std::shared_ptr<WeightGradients> current)
    : current_(std::move(current)), scope_(kCurrent, current_ ? &current_ : nullptr) {
  require_none_lost();
}

std::shared_ptr<WeightGradients> WeightGradients::current() {
  const std::shared_ptr<WeightGradients>* const current = kCurrent.get();
  return current != nullptr ? *current : nullptr;
}

void WeightGradients::backward_input(const std::vector<at::Tensor>& outputs, const std::vector<at::Tensor>& gradients) {
  run_dgrad([&] { torch::autograd::backward(outputs, gradients); });
}

void WeightGradients::backward_input(
    const torch::autograd::edge_list& roots, const std::vector<at::Tensor>& gradients) {
  run_dgrad([&] {
    if (!roots.empty()) {
      torch::autograd::Engine::get_default_engine().execute(
          roots, gradients, /*keep_graph=*/false, /*create_graph=*/false, /*accumulate_grad=*/true);
    }
  });
}

void WeightGradients::run_dgrad(const std::function<void()>& backward) {
  require_none_lost();
  require(
      state_ == State::forward,
      "weight gradients: backward_input() of a micro-batch that had one already; construct a new object per forward");
  state_ = State::dgrad;
  try {
    backward();
  } catch (...) {
    discard();
    throw;
  }
  state_ = State::between;
}

void WeightGradients::backward_weight() {
  require(
      state_ != State::forward,
      "weight gradients: backward_weight() before backward_input(): there is nothing to compute them from");
  require(
      state_ == State::between,
      "weight gradients: backward_weight() of a micro-batch that has ended; call it once, after its backward_input()");
  state_ = State::done;
  products_ = 0;
  run(std::exchange(steps_, {}));
}

// Runs the deferred matmuls in the order of dgrad. Invariant: the gradients of one node are passed to autograd when its
// last matmul is done, and a `done` step runs after all matmuls that were added before it.
void WeightGradients::run(std::vector<Step> steps) {
  std::unordered_map<const void*, Behind> groups;
  for (const Step& step : steps) {
    if (step.product) {
      ++groups[behind(step.weight)].to_come;
    }
  }
  for (Step& next : steps) {
    const Step step = std::exchange(next, {});  // frees the matmul's operands after this iteration
    if (step.done) {
      step.done();
      continue;
    }
    const auto found = groups.find(behind(step.weight));
    Behind& group = found->second;
    {
      const at::NoGradGuard no_grad;
      const OperatorScope scope(OperatorKind::matmul, "lehr::weight_gradient");
      group.add(step.weight, step.product());
    }
    if (--group.to_come == 0) {  // as early as possible, so that few gradients are in memory at a time
      torch::autograd::backward(group.weights, group.gradients);
      groups.erase(found);
    }
  }
}

void WeightGradients::discard() noexcept {
  state_ = State::done;
  products_ = 0;
  steps_.clear();
}

size_t WeightGradients::size() const {
  const std::lock_guard lock(mutex_);
  return products_;
}

bool WeightGradients::may_defer(const at::Tensor& weight) const {
  if (weight.is_leaf()) {
    return true;
  }
  const std::lock_guard lock(mutex_);
  const auto found = allowed_.find(weight.grad_fn().get());
  // The weak pointer guards against a new node at the address of an old one.
  return found != allowed_.end() && found->second.lock() == weight.grad_fn();
}

void WeightGradients::allow(const std::shared_ptr<torch::autograd::Node>& node) {
  const std::lock_guard lock(mutex_);
  allowed_[node.get()] = node;
}

void WeightGradients::add(const at::Tensor& weight, Product product) {
  const std::lock_guard lock(mutex_);
  steps_.push_back({.weight = weight, .product = std::move(product), .done = {}});
  ++products_;
}

void WeightGradients::then(std::function<void()> done) {
  const std::lock_guard lock(mutex_);
  steps_.push_back({.weight = {}, .product = {}, .done = std::move(done)});
}

void note_weight_gradients(torch::autograd::AutogradContext* ctx, const at::Tensor& weight) {
  const std::shared_ptr<WeightGradients>* const current = kCurrent.get();
  if (current != nullptr && weight.requires_grad() && (*current)->may_defer(weight)) {
    ctx->saved_data[kNote] = c10::IValue::make_capsule(c10::make_intrusive<Noted>(*current));
  }
}

at::Tensor weight_gradient(
    torch::autograd::AutogradContext* ctx, const at::Tensor& weight, WeightGradients::Product product) {
  if (ctx->saved_data.count(kNote) != 0) {
    const auto gradients = saved_object<Noted>(ctx, kNote)->gradients.lock();
    if (gradients && gradients->defers()) {
      gradients->add(weight, std::move(product));
      return {};
    }
  }
  return product();
}

}  // namespace lehr::ops
