// A mixture of experts in place of a feed-forward block.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "lehr/nn/expert_dispatch.h"
#include "lehr/nn/experts.h"
#include "lehr/nn/router.h"
#include "lehr/nn/swiglu.h"

namespace lehr::nn {

/// Shape of an expert that every token goes to.
struct SharedExpertParameters {
  int64_t intermediate_size;  ///< Its inner width.
  bool enable_gate = true;    ///< Its result is scaled by the sigmoid of a linear function of the token.
};

/// Shape of a mixture.
struct MoEParameters {
  int64_t hidden_size;
  int64_t intermediate_size;  ///< Inner width of an expert.
  int64_t num_experts;
  int64_t top_k;  ///< Experts a token goes to.
  bool renormalize_probabilities = true;
  bool enable_expert_bias = false;  ///< See TopKRouter.
  std::optional<SharedExpertParameters> shared_expert = {};
  Init init = Init::normal(0.02);
};

/// Every token goes to its top_k experts, and gets the sum of their results, weighed by the router's probabilities. No
/// token is dropped, and an expert without tokens is an ordinary case. A shared expert, if there is one, adds its
/// result for every token (DeepSeekMoE, https://arxiv.org/abs/2401.06066; gated as in Qwen2-MoE).
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

  /// Lets tokens travel another way to the experts: those of `grouped_experts` may be a part of all. The shared expert
  /// works while they are under way.
  void set_dispatcher(std::shared_ptr<const ExpertDispatcher> dispatcher) { dispatcher_ = std::move(dispatcher); }

  /// Experts of the mixture, wherever they are.
  int64_t num_experts() const { return tokens_per_expert_.size(0); }

  /// Parameters of experts that a token does not go to.
  int64_t num_idle_parameters() const;

  TopKRouter router{nullptr};
  GroupedSwiGLU grouped_experts{nullptr};
  SwiGLU shared_expert{nullptr};       // if there is one
  Linear shared_expert_gate{nullptr};  // if it has one; weight (1, H)

 private:
  at::Tensor shared_output(const at::Tensor& tokens);

  at::Tensor tokens_per_expert_;
  RoutingResult last_routing_;
  std::shared_ptr<RouterLosses> losses_;
  std::shared_ptr<const ExpertDispatcher> dispatcher_ = local_expert_dispatcher();
};
LEHR_MODULE(MoELayer);

/// The mixtures under `root`, in the order of layers.
std::vector<MoELayerImpl*> moe_layers(torch::nn::Module& root);

/// moe_tokens_per_expert() of all mixtures under `root`, (layers, E) int64; undefined if there are none. E is that of
/// the largest; a mixture with fewer experts has -1 for those that it has not, and sums over ranks stay negative there.
at::Tensor moe_tokens_per_expert(torch::nn::Module& root);
void reset_moe_stats(torch::nn::Module& root);

/// Balances the routers' biases by the tokens counted since the last reset; see TopKRouter::update_expert_bias.
void update_expert_bias(torch::nn::Module& root, double rate);
/// The same by given counts, (layers, E or more) in the order of moe_layers: those of all ranks.
void update_expert_bias(torch::nn::Module& root, const at::Tensor& tokens_per_expert, double rate);

}  // namespace lehr::nn
