// The MoE layer, which replaces a feed-forward block.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "lehr/nn/expert_dispatch.h"
#include "lehr/nn/experts.h"
#include "lehr/nn/relu_squared.h"
#include "lehr/nn/router.h"
#include "lehr/nn/swiglu.h"

namespace lehr::nn {

/// Shape of the shared expert, which processes every token. It has a gate projection if the other experts have.
struct SharedExpertParameters {
  int64_t intermediate_size;  ///< Its inner width.
  bool enable_gate = true;    ///< Scale its output by the sigmoid of a linear function of the token.
};

/// Shape of an MoE layer.
struct MoEParameters {
  int64_t hidden_size;
  int64_t intermediate_size;  ///< Inner width of an expert.
  int64_t num_experts;
  int64_t top_k;  ///< Experts per token.
  bool renormalize_probabilities = true;
  bool enable_expert_bias = false;  ///< See TopKRouter.
  RouterOptions router_options = {};
  ExpertOptions expert_options = {};  ///< The shared expert only follows relu_squared.
  std::optional<SharedExpertParameters> shared_expert = {};
  int64_t latent_size = 0;  ///< Width of the tokens that routed experts map, between two projections; 0: hidden_size.
  Init init = Init::normal(0.02);
};

/// A dropless MoE layer: the output for a token is the sum of the outputs of its top_k experts, weighted by the
/// router's probabilities. Experts without tokens are supported. A shared expert, if there is one, adds its output for
/// every token (DeepSeekMoE, https://arxiv.org/abs/2401.06066; gated as in Qwen2-MoE). With a latent size, tokens are
/// projected to it before they are sent to the routed experts, and the weighted sums back to the hidden size; the
/// router and the shared expert see whole tokens (LatentMoE, https://arxiv.org/abs/2601.18089).
class MoELayerImpl : public Module {
 public:
  explicit MoELayerImpl(const MoEParameters& parameters);

  /// Maps hidden states (B, T, H) to (B, T, H). The router sees `routed` (B, T, H), if that is given, in their place.
  at::Tensor forward(const at::Tensor& hidden_states, const at::Tensor& routed = {});

  /// Tokens per expert since the last reset, (E) int64, without the padding of the losses' token mask; a layer that is
  /// recomputed in backward counts once.
  const at::Tensor& moe_tokens_per_expert() const { return tokens_per_expert_; }
  void reset_moe_stats();

  /// The routing of the last forward in eval mode, without its graph. Not available in training: the results of all
  /// layers would stay in memory until the next forward.
  const RoutingResult& last_routing() const { return last_routing_; }

  /// Makes the layer contribute to the router losses of a model.
  void use_losses(std::shared_ptr<RouterLosses> losses) { losses_ = std::move(losses); }

  /// Replaces the dispatch of tokens, so that `grouped_experts` may hold only a part of the experts. The shared expert
  /// is computed while tokens are being sent.
  void set_dispatcher(std::shared_ptr<const ExpertDispatcher> dispatcher) { dispatcher_ = std::move(dispatcher); }

  /// Number of experts of the layer, on all ranks.
  int64_t num_experts() const { return tokens_per_expert_.size(0); }

  /// Number of parameters in the experts that a token is not routed to.
  int64_t num_idle_parameters() const;

  TopKRouter router{nullptr};
  GroupedExperts grouped_experts{nullptr};
  SwiGLU shared_expert{nullptr};                // null without a shared SwiGLU
  ReluSquaredMlp shared_relu_squared{nullptr};  // registered as "shared_expert"; null without one
  Linear shared_expert_gate{nullptr};           // null without a gate; weight (1, H)
  Linear fc1_latent_proj{nullptr};              // null without a latent size; weight (latent, H)
  Linear fc2_latent_proj{nullptr};              // the same; weight (H, latent)

 private:
  at::Tensor shared_output(const at::Tensor& tokens);  // undefined without a shared expert

  at::Tensor tokens_per_expert_;
  RoutingResult last_routing_;
  std::shared_ptr<RouterLosses> losses_;
  std::shared_ptr<const ExpertDispatcher> dispatcher_ = local_expert_dispatcher();
};
LEHR_MODULE(MoELayer);

/// Returns the MoE layers under `root`, in the order of layers.
std::vector<MoELayerImpl*> moe_layers(torch::nn::Module& root);

/// Returns moe_tokens_per_expert() of all MoE layers under `root`, (MoE layers, E) int64; undefined if there are none.
/// E is that of the largest layer; a layer with fewer experts has -1 for the missing ones, and sums over ranks stay
/// negative there.
at::Tensor moe_tokens_per_expert(torch::nn::Module& root);
void reset_moe_stats(torch::nn::Module& root);

/// Updates the routers' biases by the tokens counted since the last reset; see TopKRouter::update_expert_bias.
void update_expert_bias(torch::nn::Module& root, double rate);
/// The same with given counts, (MoE layers, E or more) in the order of moe_layers: those of all ranks.
void update_expert_bias(torch::nn::Module& root, const at::Tensor& tokens_per_expert, double rate);

}  // namespace lehr::nn
