#include "lehr/prune/score_experts.h"

#include <limits>
#include <tuple>

#include "lehr/base/error.h"

namespace lehr::prune {

namespace {
at::Tensor counted_of(const at::Tensor& rows, const MoECall& call) {
  return counted_rows(rows, call.counted);
}

void refuse_groups(const nn::TopKRouterImpl& router) {
  require(
      router.options().n_group == 1,
      "n_group: scores of experts are not supported by a router with groups of experts; expected 1, found {}",
      router.options().n_group);
}

struct Choice {
  at::Tensor experts, weights;  // (n, k)
};

// Returns the router's decision by logits (n, E) if each token lacks the expert `without` (n).
Choice route_without(const nn::TopKRouterImpl& router, const at::Tensor& logits, const at::Tensor& without) {
  constexpr double kNever = -std::numeric_limits<double>::infinity();
  const at::Tensor gone = at::zeros_like(logits, at::kBool).scatter_(1, without.unsqueeze(1), true);
  const at::Tensor scores = router.scores(logits.masked_fill(gone, kNever));
  const at::Tensor left = router.preferences(scores).masked_fill(gone, kNever);
  const at::Tensor experts = std::get<1>(left.topk(router.top_k()));
  const at::Tensor weights = router.weights(scores.gather(-1, experts));
  return {experts, weights.masked_fill(gone.gather(-1, experts), 0)};  // `without` is selected if too few others exist
}

// Returns the weighted sum (n, H) of the results (M, H) at `places` (n, k).
at::Tensor weighted(const at::Tensor& results, const at::Tensor& places, const at::Tensor& weights) {
  const at::Tensor of_tokens = results.index_select(0, places.flatten());
  return (of_tokens.view({places.size(0), places.size(1), -1}) * weights.to(at::kDouble).unsqueeze(-1)).sum(1);
}
}  // namespace

void RemoveExpertsIndependent::accumulate(nn::MoELayerImpl& moe_layer, const MoECall& call) {
  refuse_groups(*moe_layer.router);
  const at::Tensor all_tokens = counted_of(call.tokens, call);
  const at::Tensor all_outputs = counted_of(call.output, call);
  const at::Tensor all_logits = counted_of(call.routing.logits, call);
  const at::Tensor all_chosen = counted_of(call.routing.selected_expert_indices, call);
  const at::Tensor all_weights = counted_of(call.routing.selected_probabilities, call);
  const int64_t k = all_chosen.size(1);
  constexpr int64_t kElements = int64_t{1} << 25;  // 256 MiB of float64 results per chunk
  const int64_t step = std::max<int64_t>(1, kElements / ((k + 1) * all_tokens.size(1)));
  for (int64_t first = 0; first < all_tokens.size(0); first += step) {
    const int64_t n = std::min(step, all_tokens.size(0) - first);
    const auto part = [&](const at::Tensor& all) { return all.narrow(0, first, n); };
    const at::Tensor tokens = part(all_tokens), chosen = part(all_chosen);
    // The decision with all experts, then the decisions without each token's first, second, ... choice.
    std::vector<Choice> choices{{chosen, part(all_weights)}};
    std::vector<at::Tensor> pairs{chosen};
    for (int64_t place = 0; place < k; ++place) {
      choices.push_back(route_without(*moe_layer.router, part(all_logits), chosen.select(1, place)));
      pairs.push_back(choices.back().experts);
    }
    // Each distinct pair of expert and token, sorted by expert. There are nearly always k + 1 per token.
    const at::Tensor token = at::arange(n, chosen.options()).unsqueeze(1);
    const auto [distinct, places, counts] =
        at::_unique2(at::stack(pairs) * n + token, /*sorted=*/true, /*return_inverse=*/true);
    const at::Tensor ends = at::bincount(distinct.div(n, "floor"), {}, moe_layer.num_experts()).cumsum(0).to(at::kInt);
    const at::Tensor inputs = moe_layer.fc1_latent_proj ? moe_layer.fc1_latent_proj(tokens) : tokens;
    const at::Tensor rows = inputs.index_select(0, distinct.remainder(n));
    at::Tensor results = moe_layer.grouped_experts(rows, ends);
    results = (moe_layer.fc2_latent_proj ? moe_layer.fc2_latent_proj(results) : results).to(at::kDouble);  // (M, H)

    const at::Tensor output = part(all_outputs).to(at::kDouble);
    const at::Tensor with_all = weighted(results, places[0], choices[0].weights);
    at::Tensor losses = at::zeros({moe_layer.num_experts()}, output.options());
    for (int64_t place = 0; place < k; ++place) {
      const at::Tensor change = weighted(results, places[place + 1], choices[place + 1].weights) - with_all;
      losses.index_add_(
          0,
          chosen.select(1, place),
          distance_ == Distance::mse ? change.square().mean(1)
                                     : 1 - at::cosine_similarity(output, output + change, -1));
    }
    losses_.add(losses, n);
  }
}

void RankedChoiceVoting::accumulate(nn::MoELayerImpl& moe_layer, const MoECall& call) {
  refuse_groups(*moe_layer.router);
  const at::Tensor likes = moe_layer.router->preferences(counted_of(call.routing.scores, call));
  const at::Tensor sum = likes.sum(at::kDouble);
  probabilities_ = probabilities_.defined() ? probabilities_ + sum : sum;
  const at::Tensor order = std::get<1>(likes.sort(/*stable=*/true, /*dim=*/-1, /*descending=*/true));
  ballots_.push_back(order.to(at::kCPU, at::kShort));
  votes_ = moe_layer.router->top_k();
}

at::Tensor RankedChoiceVoting::scores() const {
  require(!ballots_.empty(), "RankedChoiceVoting: no token was seen; tokens are the voters");
  require_finite(probabilities_);
  return count(at::cat(ballots_), votes_);
}

at::Tensor RankedChoiceVoting::count(const at::Tensor& ballots, int64_t votes) {
  const int64_t tokens = ballots.size(0), experts = ballots.size(1);
  const at::Tensor ranked = ballots.contiguous();
  const auto* choice = ranked.const_data_ptr<int16_t>();
  std::vector<std::vector<int64_t>> voters(static_cast<size_t>(experts));
  for (int64_t token = 0; token < tokens; ++token) {
    for (int64_t place = 0; place < votes; ++place) {
      voters[static_cast<size_t>(choice[token * experts + place])].push_back(token);
    }
  }
  std::vector<size_t> first_count;
  for (const auto& of_expert : voters) {
    first_count.push_back(of_expert.size());
  }
  std::vector<int64_t> next(static_cast<size_t>(tokens), votes);  // per token, its first choice that has no vote yet
  std::vector<bool> gone(static_cast<size_t>(experts), false);
  at::Tensor scores = at::zeros({experts}, at::kDouble);
  // Each round removes the expert with the fewest votes, and passes its votes to the next remaining choices.
  for (int64_t rank = 0; rank < experts; ++rank) {
    size_t last = gone.size();
    for (size_t e = 0; e < gone.size(); ++e) {
      const auto support = [&](size_t expert) { return std::pair(voters[expert].size(), first_count[expert]); };
      if (!gone[e] && (last == gone.size() || support(e) <= support(last))) {
        last = e;
      }
    }
    gone[last] = true;
    scores[static_cast<int64_t>(last)] = static_cast<double>(rank);
    for (const int64_t token : std::exchange(voters[last], {})) {
      int64_t& place = next[static_cast<size_t>(token)];
      while (place < experts && gone[static_cast<size_t>(choice[token * experts + place])]) {
        ++place;
      }
      if (place < experts) {
        voters[static_cast<size_t>(choice[token * experts + place++])].push_back(token);
      }
    }
  }
  return scores;
}

void IndependentExpertChannelContribution::accumulate(nn::MoELayerImpl& moe_layer, const MoECall& call) {
  const at::Tensor& chosen = call.routing.selected_expert_indices;
  // (N * k): the pair of token and choice of each row of call.inner, then its token.
  const at::Tensor order = ops::sort_by_expert(chosen, moe_layer.num_experts()).order;
  const at::Tensor token = order.div(chosen.size(1), "floor");
  const at::Tensor counts = call.counted.defined() ? call.counted.index_select(0, token) : at::Tensor();
  const at::Tensor expert = counted_rows(chosen.flatten().index_select(0, order).unsqueeze(1), counts).squeeze(1);
  const at::Tensor inner = counted_rows(call.inner, counts);
  const at::Tensor weight = moe_layer.grouped_experts->down_proj->weight;  // (E, H, I)
  if (!norms_.defined()) {
    std::vector<at::Tensor> norms;  // expert by expert, as a float64 copy of all weights would be large
    for (const at::Tensor& of_expert : weight.unbind(0)) {
      norms.push_back(of_expert.to(at::kDouble).norm(2, 0));
    }
    norms_ = at::stack(norms);
    activations_ = at::zeros_like(norms_);
    tokens_ = at::zeros({moe_layer.num_experts()}, norms_.options());
  }
  int64_t first = 0;
  for_rows_in_float64(inner, [&](const at::Tensor& rows) {
    const at::Tensor own = expert.narrow(0, first, rows.size(0));
    activations_.index_add_(0, own, rows.abs());
    tokens_.index_add_(0, own, at::ones({rows.size(0)}, tokens_.options()));
    first += rows.size(0);
  });
}

at::Tensor IndependentExpertChannelContribution::scores() const {
  require(
      tokens_.defined() && tokens_.sum().item<double>() > 0,
      "IndependentExpertChannelContribution: no token was seen; scores are means over tokens");
  return require_finite(activations_ / tokens_.clamp_min(1).unsqueeze(1) * norms_);
}

}  // namespace lehr::prune
