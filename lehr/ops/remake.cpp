#include "lehr/ops/remake.h"

#include <utility>

namespace lehr::ops {

namespace {
using torch::autograd::AutogradContext;
using torch::autograd::Node;
using torch::autograd::variable_list;

thread_local bool t_remakes_products = false;

// The node stands before the reader's, so that neither holds the other in a circle.
struct MadeBy : torch::CustomClassHolder {
  MadeBy(std::shared_ptr<Node> made_by, const at::Tensor& input)
      : node(std::move(made_by)), sizes(input.sizes().vec()) {}
  std::shared_ptr<Node> node;
  std::vector<int64_t> sizes;
};

Remaker* remaker_of(const Node& node) {
  for (const auto& hook : node.pre_hooks()) {
    if (auto* const found = dynamic_cast<Remaker*>(hook.get())) {
      return found;
    }
  }
  return nullptr;
}

// The node that can make `input` again; null if there is none. What was written to since has another node, or another
// version if that was without grad mode.
std::shared_ptr<Node> maker_of(const at::Tensor& input) {
  const auto able = [](const at::Tensor& tensor) -> std::shared_ptr<Node> {
    const Remaker* const remaker = tensor.grad_fn() ? remaker_of(*tensor.grad_fn()) : nullptr;
    return remaker != nullptr && remaker->makes(tensor) ? tensor.grad_fn() : nullptr;
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
}  // namespace

RemakeProducts::RemakeProducts(bool on) : before_(std::exchange(t_remakes_products, on)) {}

RemakeProducts::~RemakeProducts() {
  t_remakes_products = before_;
}

bool RemakeProducts::on() {
  return t_remakes_products;
}

bool can_be_made_again(const at::Tensor& tensor) {
  return maker_of(tensor) != nullptr;
}

at::Tensor Remaker::tensor() {
  const std::lock_guard lock(mutex_);
  if (!made_.defined()) {
    const at::NoGradGuard no_grad;
    made_ = make_();
  }
  return made_;
}

variable_list Remaker::operator()(const variable_list& grads) {
  const std::lock_guard lock(mutex_);
  made_.reset();
  return grads;
}

at::Tensor keep(AutogradContext* ctx, const char* name, const at::Tensor& input) {
  const auto node = maker_of(input);
  if (node == nullptr) {
    return input;
  }
  ctx->saved_data[name] = c10::IValue::make_capsule(c10::make_intrusive<MadeBy>(node, input));
  return {};
}

at::Tensor keep_operand(AutogradContext* ctx, const char* name, const at::Tensor& input, const at::Tensor& weight) {
  return weight.requires_grad() || RemakeProducts::on() ? keep(ctx, name, input) : at::Tensor();
}

at::Tensor kept(AutogradContext* ctx, const char* name, const at::Tensor& saved) {
  if (saved.defined()) {
    return saved.detach();
  }
  const auto found = ctx->saved_data.find(name);
  if (found == ctx->saved_data.end()) {
    return {};
  }
  const auto made_by = c10::static_intrusive_pointer_cast<MadeBy>(found->second.toCapsule());
  return remaker_of(*made_by->node)->tensor().view(made_by->sizes);
}

}  // namespace lehr::ops
