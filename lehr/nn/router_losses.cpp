#include "lehr/nn/router_losses.h"

namespace lehr::nn {

namespace {
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct Attach : torch::autograd::Function<Attach> {
  static at::Tensor forward(
      AutogradContext* ctx, const at::Tensor& probabilities, const at::Tensor& logits, RouterLosses* losses) {
    ctx->save_for_backward({logits});
    ctx->saved_data["losses"] = reinterpret_cast<int64_t>(losses);
    return probabilities.view_as(probabilities);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto* losses = reinterpret_cast<const RouterLosses*>(ctx->saved_data["losses"].toInt());
    const at::Tensor logits = ctx->get_saved_variables().front();
    return {grads[0] + losses->probability_gradient(grads[0]), losses->logit_gradient(logits), at::Tensor()};
  }
};

void add_to(at::Tensor& sum, const at::Tensor& value) {
  sum = sum.defined() ? sum + value : value;
}
}  // namespace

void RouterLosses::begin(const RouterLossWeights& weights) {
  *this = RouterLosses();
  weights_ = weights;
}

void RouterLosses::add(const at::Tensor& logits, const at::Tensor& probabilities, const at::Tensor& counts) {
  at::NoGradGuard no_grad;
  const auto type = probabilities.scalar_type();
  rows_ += static_cast<double>(probabilities.size(0));
  add_to(counts_, counts.to(type));
  add_to(probabilities_, probabilities.detach().sum(0));
  add_to(z_, at::logsumexp(logits.detach().to(type), -1).square().sum());
}

at::Tensor RouterLosses::attach(const at::Tensor& probabilities, const at::Tensor& logits) {
  return Attach::apply(probabilities, logits, this);
}

at::Tensor RouterLosses::load_balancing_loss() const {
  if (!counts_.defined()) {
    return {};
  }
  return (counts_ * probabilities_).sum() * (static_cast<double>(counts_.size(0)) / (rows_ * rows_));
}

at::Tensor RouterLosses::z_loss() const {
  return z_.defined() ? z_ / rows_ : at::Tensor();
}

at::Tensor RouterLosses::probability_gradient(const at::Tensor& like) const {
  const double factor =
      weights_.share * weights_.load_balancing * static_cast<double>(counts_.size(0)) / (rows_ * rows_);
  return (counts_ * factor).to(like.scalar_type()).expand_as(like);
}

at::Tensor RouterLosses::logit_gradient(const at::Tensor& logits) const {
  if (weights_.z == 0) {
    return {};
  }
  const at::Tensor wide = logits.to(z_.scalar_type());
  const at::Tensor sums = at::logsumexp(wide, -1, /*keepdim=*/true);
  return (2 * weights_.share * weights_.z / rows_ * sums * at::softmax(wide, -1)).to(logits.scalar_type());
}

}  // namespace lehr::nn
