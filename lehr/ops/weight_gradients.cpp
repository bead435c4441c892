#include "lehr/ops/weight_gradients.h"

#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/engine.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "lehr/base/error.h"
#include "lehr/base/operator_profile.h"

namespace lehr::ops {

namespace {
thread_local std::shared_ptr<WeightGradients> t_current;
thread_local size_t t_lost = 0;  // gradients, in objects that went before their weight half

void require_none_lost() {
  const size_t lost = std::exchange(t_lost, 0);
  require(
      lost == 0,
      "weight gradients: {} of an earlier microbatch were never computed; call backward_weight() after every "
      "backward_input(), or discard() after a failure",
      lost);
}

// Weak, so that a graph and what waits for it never hold each other.
struct Noted : torch::CustomClassHolder {
  explicit Noted(std::weak_ptr<WeightGradients> where) : gradients(std::move(where)) {}
  std::weak_ptr<WeightGradients> gradients;
};
constexpr const char* kNote = "weight_gradients";

// The weights of one node, whose gradients it gets together: the outputs of a node that was allowed, or one leaf.
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

// A leaf stands for itself: the node that accumulates its gradient is made anew when nobody holds it.
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

WeightGradients::Scope::Scope(std::shared_ptr<WeightGradients> current) {
  require_none_lost();
  before_ = std::exchange(t_current, std::move(current));
}

WeightGradients::Scope::~Scope() {
  t_current = std::move(before_);
}

std::shared_ptr<WeightGradients> WeightGradients::current() {
  return t_current;
}

void WeightGradients::backward_input(const std::vector<at::Tensor>& outputs, const std::vector<at::Tensor>& gradients) {
  input_half([&] { torch::autograd::backward(outputs, gradients); });
}

void WeightGradients::backward_input(
    const torch::autograd::edge_list& roots, const std::vector<at::Tensor>& gradients) {
  input_half([&] {
    if (!roots.empty()) {
      torch::autograd::Engine::get_default_engine().execute(
          roots, gradients, /*keep_graph=*/false, /*create_graph=*/false, /*accumulate_grad=*/true);
    }
  });
}

void WeightGradients::input_half(const std::function<void()>& backward) {
  require_none_lost();
  require(
      state_ == State::forward,
      "weight gradients: backward_input() of a microbatch that had one already; make a new object for each forward");
  state_ = State::input_half;
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
      "weight gradients: backward_weight() of a microbatch that is over: each has one, after its backward_input()");
  state_ = State::done;
  products_ = 0;
  run(std::exchange(steps_, {}));
}

void WeightGradients::run(std::vector<Step> steps) {
  std::unordered_map<const void*, Behind> groups;
  for (const Step& step : steps) {
    if (step.product) {
      ++groups[behind(step.weight)].to_come;
    }
  }
  for (Step& next : steps) {
    const Step step = std::exchange(next, {});
    if (step.done) {
      step.done();
      continue;
    }
    const auto found = groups.find(behind(step.weight));
    Behind& group = found->second;
    {
      const at::NoGradGuard no_grad;
      const OperatorScope scope(OperatorKind::product, "lehr::weight_gradient");
      group.add(step.weight, step.product());
    }
    if (--group.to_come == 0) {  // as early as can be: no more gradients stand about than those of one node
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
  return found != allowed_.end() && found->second.lock() == weight.grad_fn();  // not another node at an old address
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
  if (t_current && weight.requires_grad() && t_current->may_defer(weight)) {
    ctx->saved_data[kNote] = c10::IValue::make_capsule(c10::make_intrusive<Noted>(t_current));
  }
}

at::Tensor weight_gradient(
    torch::autograd::AutogradContext* ctx, const at::Tensor& weight, WeightGradients::Product product) {
  const auto note = ctx->saved_data.find(kNote);
  if (note != ctx->saved_data.end()) {
    const auto noted = c10::static_intrusive_pointer_cast<Noted>(note->second.toCapsule());
    const auto gradients = noted->gradients.lock();
    if (gradients && gradients->defers()) {
      gradients->add(weight, std::move(product));
      return {};
    }
  }
  return product();
}

}  // namespace lehr::ops
