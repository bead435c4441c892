#include "lehr/ops/recompute.h"

#include <ATen/ops/_unsafe_view.h>

#include <utility>

#include "lehr/base/autograd_function.h"

namespace lehr::ops {

namespace {
using torch::autograd::AutogradContext;
using torch::autograd::Node;
using torch::autograd::variable_list;

const ContextSlot<bool> kRecomputesMatmuls("recomputes matmuls");

// Reference from a reader's context to the node that recomputes its input. The node precedes the reader in the graph,
// so there is no reference cycle.
struct MadeBy : torch::CustomClassHolder {
  MadeBy(std::shared_ptr<Node> made_by, const at::Tensor& input)
      : node(std::move(made_by)), sizes(input.sizes().vec()) {}
  std::shared_ptr<Node> node;
  std::vector<int64_t> sizes;
};

Recompute* recompute_of(const Node& node) {
  for (const auto& hook : node.pre_hooks()) {
    if (auto* const found = dynamic_cast<Recompute*>(hook.get())) {
      return found;
    }
  }
  return nullptr;
}

// Returns the node that can recompute `input`; null if there is none. A tensor that was written to since has another
// node, or another version if it was written to without grad mode. A reshaped view is recomputed through its base.
std::shared_ptr<Node> maker_of(const at::Tensor& input) {
  const auto able = [](const at::Tensor& tensor) -> std::shared_ptr<Node> {
    const Recompute* const recompute = tensor.grad_fn() ? recompute_of(*tensor.grad_fn()) : nullptr;
    return recompute != nullptr && recompute->makes(tensor) ? tensor.grad_fn() : nullptr;
  };
  if (!input.grad_fn()) {
    return nullptr;
  }
  if (!input.is_view()) {
    return able(input);
  }
  const at::Tensor base(input._base());
  const bool other_shape_only = input.numel() == base.numel() && input.is_contiguous() && base.is_contiguous();
  return other_shape_only ? able(base) : nullptr;
}

struct Identity : AutogradFunction<Identity> {
  static at::Tensor forward(AutogradContext* /*ctx*/, const at::Tensor& x) {
    return at::_unsafe_view(x, x.sizes());  // not a view to autograd, which maker_of() would follow
  }
  static variable_list backward(AutogradContext* /*ctx*/, const variable_list& grads) { return {grads[0]}; }
};
}  // namespace

RecomputeMatmuls::RecomputeMatmuls(bool on) : scope_(kRecomputesMatmuls, on) {}

bool RecomputeMatmuls::on() {
  return kRecomputesMatmuls.get();
}

at::Tensor recomputable(const at::Tensor& output, std::function<at::Tensor(AutogradContext*)> make) {
  Node* const node = output.grad_fn().get();  // which owns the hook
  node->add_pre_hook(std::make_unique<Recompute>(
      Recompute::Make([node, make = std::move(make)] { return make(&autograd_context(*node)); }), output));
  return output;
}

at::Tensor recomputable_in_parts(const at::Tensor& output, std::function<Recompute::Make(AutogradContext*)> start) {
  Node* const node = output.grad_fn().get();
  node->add_pre_hook(std::make_unique<Recompute>(
      std::function<Recompute::Make()>([node, start = std::move(start)] { return start(&autograd_context(*node)); }),
      output));
  return output;
}

at::Tensor without_recomputation(const at::Tensor& tensor) {
  return can_recompute(tensor) ? Identity::apply(tensor) : tensor;
}

bool can_recompute(const at::Tensor& tensor) {
  return maker_of(tensor) != nullptr;
}

void Recompute::start() {
  const std::lock_guard lock(mutex_);
  start_locked();
}

void Recompute::start_locked() {
  if (start_ && !make_ && !made_.defined()) {
    const at::NoGradGuard no_grad;
    make_ = start_();
  }
}

at::Tensor Recompute::tensor() {
  const std::lock_guard lock(mutex_);
  start_locked();
  if (!made_.defined()) {
    const at::NoGradGuard no_grad;
    made_ = start_ ? std::exchange(make_, {})() : make_();
  }
  return made_;
}

variable_list Recompute::operator()(const variable_list& grads) {
  const std::lock_guard lock(mutex_);
  made_.reset();
  return grads;
}

at::Tensor save_or_recompute(AutogradContext* ctx, const char* name, const at::Tensor& input) {
  const auto node = maker_of(input);
  if (node == nullptr) {
    return input;
  }
  ctx->saved_data[name] = c10::IValue::make_capsule(c10::make_intrusive<MadeBy>(node, input));
  return {};
}

at::Tensor save_operand(AutogradContext* ctx, const char* name, const at::Tensor& input, const at::Tensor& weight) {
  return weight.requires_grad() || RecomputeMatmuls::on() ? save_or_recompute(ctx, name, input) : at::Tensor();
}

namespace {
// Returns the reference to the node that recomputes the input; null if the input was saved.
c10::intrusive_ptr<MadeBy> made_by(AutogradContext* ctx, const char* name) {
  return ctx->saved_data.count(name) == 0 ? nullptr : saved_object<MadeBy>(ctx, name);
}
}  // namespace

void start_recomputing(AutogradContext* ctx, const char* name) {
  if (const auto maker = made_by(ctx, name)) {
    recompute_of(*maker->node)->start();
  }
}

at::Tensor saved_or_recomputed(AutogradContext* ctx, const char* name, const at::Tensor& saved) {
  if (saved.defined()) {
    return saved.detach();
  }
  const auto maker = made_by(ctx, name);
  return maker ? recompute_of(*maker->node)->tensor().view(maker->sizes) : at::Tensor();
}

}  // namespace lehr::ops
