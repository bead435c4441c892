#include "lehr/prune/score_channels.h"

#include <limits>

#include "lehr/base/error.h"

namespace lehr::prune {

std::vector<int64_t> removal_schedule(int64_t channels, int64_t batches) {
  std::vector<int64_t> schedule(static_cast<size_t>(batches), channels / batches);
  if (channels >= batches) {
    std::for_each_n(schedule.begin(), channels % batches, [](int64_t& count) { ++count; });
    return schedule;
  }
  for (int64_t i = 1; i <= channels; ++i) {
    ++schedule[static_cast<size_t>(i * batches / channels - 1)];
  }
  return schedule;
}

namespace {
// Computes errors_of_removal for one chunk of rows after the other; terms that do not depend on the rows are computed
// once.
class Removal {
 public:
  Removal(const at::Tensor& weight, const at::Tensor& removed)
      : weight_(weight),
        removed_(removed),
        columns_(weight.index_select(1, removed).t()),  // (n, H)
        norms_(weight.square().sum(0)) {}

  at::Tensor errors(const at::Tensor& inputs) const {
    if (removed_.size(0) == 0) {
      return root(inputs.square() * norms_);
    }
    const at::Tensor lost = inputs.index_select(1, removed_).matmul(columns_);  // s, (N, H)
    const at::Tensor along = lost.matmul(weight_);                              // s . W_i
    return root(lost.square().sum(1, /*keepdim=*/true) + inputs * (2 * along + inputs * norms_));
  }

 private:
  // Squares can be negative by rounding only.
  static at::Tensor root(const at::Tensor& squares) { return squares.clamp_min(0).add(1e-8).sqrt(); }

  at::Tensor weight_, removed_, columns_, norms_;
};
}  // namespace

at::Tensor errors_of_removal(const at::Tensor& inputs, const at::Tensor& weight, const at::Tensor& removed) {
  return Removal(weight, removed).errors(inputs);
}

IterativeChannelContribution::IterativeChannelContribution(int64_t channels, int64_t batches) : channels_(channels) {
  require(batches > 0, "IterativeChannelContribution: expected at least 1 batch, found {}", batches);
  schedule_ = removal_schedule(channels, batches);
  removed_ = at::empty({0}, at::kLong);
}

void IterativeChannelContribution::accumulate(
    const at::Tensor& input, const at::Tensor& weight, const at::Tensor& counted) {
  require(
      batches_seen_ < schedule_.size(),
      "IterativeChannelContribution: expected {} batches, found one more",
      schedule_.size());
  removed_ = removed_.to(input.device());
  const Removal removal(weight.to(at::kDouble), removed_);
  for_rows_in_float64(counted_rows(input, counted), [&](const at::Tensor& rows) {
    errors_.add(removal.errors(rows).sum(0), rows.size(0));
  });
  remove(schedule_[batches_seen_++]);
}

void IterativeChannelContribution::remove(int64_t count) {
  if (count == 0) {
    return;
  }
  // Infinite errors keep removed channels from being chosen again.
  const at::Tensor left = errors_.value().index_fill(0, removed_, std::numeric_limits<double>::infinity());
  const at::Tensor order = std::get<1>(left.sort(/*stable=*/true, /*dim=*/0, /*descending=*/false));
  removed_ = at::cat({removed_, order.narrow(0, 0, count)});
  errors_.reset();
}

at::Tensor IterativeChannelContribution::scores() const {
  require(
      batches_seen_ == schedule_.size(),
      "IterativeChannelContribution: expected {} batches, found {}",
      schedule_.size(),
      batches_seen_);
  const at::Tensor ranks = at::arange(channels_, removed_.options().dtype(at::kDouble));
  return at::empty_like(ranks).index_copy_(0, removed_, ranks);
}

void IndependentChannelContribution::accumulate(
    const at::Tensor& input, const at::Tensor& weight, const at::Tensor& counted) {
  const at::Tensor rows = counted_rows(input, counted);
  activations_.add(rows.abs().sum(0, /*keepdim=*/false, at::kDouble), rows.size(0));
  if (!norms_.defined()) {
    norms_ = weight.to(at::kDouble).norm(2, 0);
  }
}

at::Tensor IndependentChannelContribution::scores() const {
  return require_finite(activations_.value() * norms_);
}

void L2Norm::accumulate(const at::Tensor& input, const at::Tensor& /*weight*/, const at::Tensor& counted) {
  for (int64_t row = 0; row < input.size(0); ++row) {
    const at::Tensor tokens = counted_rows(input[row], counted.defined() ? counted[row] : at::Tensor());
    if (tokens.size(0) > 0) {
      const at::Tensor mean = tokens.abs().sum(0, /*keepdim=*/false, at::kDouble) / tokens.size(0);
      squares_ = squares_.defined() ? squares_ + mean.square() : mean.square();
    }
  }
}

at::Tensor L2Norm::scores() const {
  require(squares_.defined(), "L2Norm: no token was seen; scores are sums over sequences");
  return require_finite(squares_.sqrt());
}

void IndependentKvHeadContribution::accumulate(
    const at::Tensor& input, const at::Tensor& weight, const at::Tensor& counted) {
  const auto columns = weight.to(at::kDouble).chunk(heads_, 1);  // (H, I / heads) each
  for_rows_in_float64(counted_rows(input, counted), [&](const at::Tensor& rows) {
    const auto inputs = rows.chunk(heads_, 1);
    std::vector<at::Tensor> sums;
    for (size_t head = 0; head < columns.size(); ++head) {
      sums.push_back(inputs[head].matmul(columns[head].t()).norm(2, 1).sum());
    }
    contributions_.add(at::stack(sums), rows.size(0));
  });
}

void BlockInfluence::accumulate(const at::Tensor& before, const at::Tensor& after, const at::Tensor& counted) {
  const at::Tensor both = at::cat({counted_rows(before, counted), counted_rows(after, counted)}, 1);  // (N, 2H)
  for_rows_in_float64(both, [&](const at::Tensor& rows) {
    const auto parts = rows.chunk(2, 1);
    turns_.add((1 - at::cosine_similarity(parts[0], parts[1], -1)).sum().view(1), rows.size(0));
  });
}

}  // namespace lehr::prune
