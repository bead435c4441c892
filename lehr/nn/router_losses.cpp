#include "lehr/nn/router_losses.h"

#include "lehr/base/autograd_function.h"

namespace lehr::nn {

namespace {
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct Attach : AutogradFunction<Attach> {
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

at::Tensor RouterLosses::count_choices(const at::Tensor& choices, const at::Tensor& of_all) const {
  if (!token_mask_.defined()) {
    return of_all;
  }
  const at::Tensor ones = token_mask_.to(of_all.scalar_type()).unsqueeze(-1).expand_as(choices);
  return at::zeros_like(of_all).scatter_add(0, choices.flatten(), ones.flatten());
}

// Fills instead of multiplying: padding may hold values that are not finite.
at::Tensor RouterLosses::without_padding(const at::Tensor& rows) const {
  if (!token_mask_.defined()) {
    return rows;
  }
  const at::Tensor is_padding = token_mask_.logical_not();
  return rows.masked_fill(rows.dim() > 1 ? is_padding.unsqueeze(-1) : is_padding, 0);
}

void RouterLosses::add(const at::Tensor& logits, const at::Tensor& probabilities, const at::Tensor& counts) {
  at::NoGradGuard no_grad;
  const auto type = probabilities.scalar_type();
  if (token_mask_.defined()) {
    add_to(rows_on_device_, token_mask_.sum(at::kDouble));
  } else {
    rows_ += static_cast<double>(probabilities.size(0));
  }
  add_to(mine_.counts, counts.to(type));
  add_to(mine_.probabilities, without_padding(probabilities.detach()).sum(0));
  const at::Tensor logsumexp = without_padding(at::logsumexp(logits.detach().to(type), -1));
  add_to(mine_.z, logsumexp.square().sum());
  totals_ = {};
}

// (2 E + 2): counts, probabilities, z, rows.
at::Tensor RouterLosses::pack(const Totals& sums) {
  // A host number is written by a fill: a copy would wait for all work that the device was given before.
  const at::Tensor rows = sums.rows.device() == sums.z.device()
                              ? sums.rows.view(1)
                              : at::full({1}, sums.rows.item<double>(), sums.z.options().dtype(at::kDouble));
  return at::cat({sums.counts, sums.probabilities, sums.z.view(1), rows});
}

// On the host, where it is a plain number, unless a previous stage or a layer with a token mask has added to it.
at::Tensor RouterLosses::rows() const {
  return rows_on_device_.defined() ? rows_on_device_ + rows_ : at::scalar_tensor(rows_, at::kDouble);
}

RouterLosses::Totals RouterLosses::unpack(const at::Tensor& packed, at::ScalarType type) {
  const int64_t experts = (packed.size(0) - 2) / 2;
  const auto part = [&](int64_t first, int64_t count) { return packed.narrow(0, first, count).to(type); };
  return {
      .counts = part(0, experts),
      .probabilities = part(experts, experts),
      .z = part(2 * experts, 1).squeeze(0),
      .rows = packed[2 * experts + 1]};
}

const RouterLosses::Totals& RouterLosses::totals() const {
  if (totals_.counts.defined()) {
    return totals_;
  }
  at::NoGradGuard no_grad;
  totals_ = mine_;
  totals_.rows = rows();
  if (sum_over_ranks_) {
    totals_ = unpack(sum_over_ranks_(pack(totals_)), mine_.counts.scalar_type());
  }
  totals_.rows = totals_.rows.clamp_min(1);  // a micro-batch may be all padding
  return totals_;
}

RouterLosses::Forward RouterLosses::take() {
  Forward forward{
      .weights = weights_,
      .mine = mine_,
      .rows = rows_,
      .rows_on_device = rows_on_device_,
      .token_mask = token_mask_,
      .totals = totals_};
  begin({});
  return forward;
}

void RouterLosses::put(const Forward& forward) {
  weights_ = forward.weights;
  mine_ = forward.mine;
  rows_ = forward.rows;
  rows_on_device_ = forward.rows_on_device;
  token_mask_ = forward.token_mask;
  totals_ = forward.totals;
}

at::Tensor RouterLosses::packed() const {
  if (!mine_.counts.defined()) {
    return {};
  }
  Totals sums = mine_;
  sums.rows = rows();
  return pack(sums);
}

void RouterLosses::add_packed(const at::Tensor& packed) {
  const auto type = mine_.counts.defined() ? mine_.counts.scalar_type() : packed.scalar_type();
  const Totals before = unpack(packed, type);
  add_to(rows_on_device_, before.rows);
  add_to(mine_.counts, before.counts);
  add_to(mine_.probabilities, before.probabilities);
  add_to(mine_.z, before.z);
  totals_ = {};
}

at::Tensor RouterLosses::packed_totals() const {
  return mine_.counts.defined() ? pack(totals()) : at::Tensor();
}

void RouterLosses::set_totals(const at::Tensor& packed) {
  totals_ = unpack(packed, mine_.counts.defined() ? mine_.counts.scalar_type() : packed.scalar_type());
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
  return without_padding((counts * factor).to(like.scalar_type()).expand_as(like));
}

at::Tensor RouterLosses::logit_gradient(const at::Tensor& logits) const {
  if (weights_.z == 0) {
    return {};
  }
  const at::Tensor wide = logits.to(totals().z.scalar_type());
  const at::Tensor sums = at::logsumexp(wide, -1, /*keepdim=*/true);
  const at::Tensor factor = 2 * weights_.share * weights_.z / totals().rows;
  return without_padding((sums * factor * at::softmax(wide, -1)).to(logits.scalar_type()));
}

}  // namespace lehr::nn
