// A mixture of experts in place of a feed-forward block.
#pragma once

#include <memory>
#include <vector>

#include "lehr/nn/experts.h"
#include "lehr/nn/router.h"

namespace lehr::nn {

/// Shape of a mixture.
struct MoEParameters {
  int64_t hidden_size;
  int64_t intermediate_size;  ///< Inner width of an expert.
  int64_t num_experts;
  int64_t top_k;  ///< Experts a token goes to.
  bool renormalize_probabilities = true;
  Init init = Init::normal(0.02);
};

/// Every token goes to its top_k experts, and gets the sum of their results, weighed by the router's probabilities. No
/// token is dropped, and an expert without tokens is an ordinary case.
class MoELayerImpl : public Module {
 public:
  explicit MoELayerImpl(const MoEParameters& parameters);

  /// Maps hidden states (B, T, H) to (B, T, H).
  at::Tensor forward(const at::Tensor& hidden_states);

  /// Tokens that each expert got since the last reset, (E) int64; a layer that is computed again for backward counts
  /// once.
  const at::Tensor& moe_tokens_per_expert() const { return tokens_per_expert_; }
  void reset_moe_stats();

  /// The decision of the last forward, without its graph.
  const RoutingResult& last_routing() const { return last_routing_; }

  /// Lets the mixture take part in losses over all mixtures of a model.
  void use_losses(std::shared_ptr<RouterLosses> losses) { losses_ = std::move(losses); }

  /// Parameters of experts that a token does not go to.
  int64_t num_idle_parameters() const;

  TopKRouter router{nullptr};
  GroupedSwiGLU grouped_experts{nullptr};

 private:
  at::Tensor tokens_per_expert_;
  RoutingResult last_routing_;
  std::shared_ptr<RouterLosses> losses_;
};
TORCH_MODULE(MoELayer);

/// The mixtures under `root`, in the order of layers.
std::vector<MoELayerImpl*> moe_layers(torch::nn::Module& root);

/// moe_tokens_per_expert() of all mixtures under `root`, (layers, E) int64; undefined if there are none. All must have
/// the same number of experts.
at::Tensor moe_tokens_per_expert(torch::nn::Module& root);
void reset_moe_stats(torch::nn::Module& root);

}  // namespace lehr::nn
