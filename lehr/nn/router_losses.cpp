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
  RouterLosses fresh;
  fresh.weights_ = weights;
  fresh.sum_over_ranks_ = std::move(sum_over_ranks_);
  *this = std::move(fresh);
}

void RouterLosses::add(const at::Tensor& logits, const at::Tensor& probabilities, const at::Tensor& counts) {
  at::NoGradGuard no_grad;
  const auto type = probabilities.scalar_type();
  rows_ += static_cast<double>(probabilities.size(0));
  add_to(mine_.counts, counts.to(type));
  add_to(mine_.probabilities, probabilities.detach().sum(0));
  add_to(mine_.z, at::logsumexp(logits.detach().to(type), -1).square().sum());
  totals_ = {};
}

const RouterLosses::Totals& RouterLosses::totals() const {
  if (totals_.counts.defined()) {
    return totals_;
  }
  at::NoGradGuard no_grad;
  totals_ = mine_;
  totals_.rows = at::scalar_tensor(rows_, at::kDouble);  // on the host: it counts as a number
  if (sum_over_ranks_) {
    const int64_t experts = mine_.counts.size(0);
    const at::Tensor rows = at::full({1}, rows_, mine_.z.options().dtype(at::kDouble));
    const at::Tensor sums = sum_over_ranks_(at::cat({mine_.counts, mine_.probabilities, mine_.z.view(1), rows}));
    const auto part = [&](int64_t first, int64_t count) {
      return sums.narrow(0, first, count).to(mine_.counts.scalar_type());
    };
    totals_ = {
        .counts = part(0, experts),
        .probabilities = part(experts, experts),
        .z = part(2 * experts, 1).squeeze(0),
        .rows = sums[2 * experts + 1]};
  }
  return totals_;
}

at::Tensor RouterLosses::attach(const at::Tensor& probabilities, const at::Tensor& logits) {
  return Attach::apply(probabilities, logits, this);
}

at::Tensor RouterLosses::load_balancing_loss() const {
  if (!mine_.counts.defined()) {
    return {};
  }
  const auto& [counts, probabilities, z, rows] = totals();
  return (counts * probabilities).sum() * (static_cast<double>(counts.size(0)) / (rows * rows));
}

at::Tensor RouterLosses::z_loss() const {
  return mine_.z.defined() ? totals().z / totals().rows : at::Tensor();
}

at::Tensor RouterLosses::probability_gradient(const at::Tensor& like) const {
  const auto& [counts, probabilities, z, rows] = totals();
  const at::Tensor factor =
      weights_.share * weights_.load_balancing * static_cast<double>(counts.size(0)) / (rows * rows);
  return (counts * factor).to(like.scalar_type()).expand_as(like);
}

at::Tensor RouterLosses::logit_gradient(const at::Tensor& logits) const {
  if (weights_.z == 0) {
    return {};
  }
  const at::Tensor wide = logits.to(totals().z.scalar_type());
  const at::Tensor sums = at::logsumexp(wide, -1, /*keepdim=*/true);
  const at::Tensor factor = 2 * weights_.share * weights_.z / totals().rows;
  return (sums * factor * at::softmax(wide, -1)).to(logits.scalar_type());
}

}  // namespace lehr::nn
