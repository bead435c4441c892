// Closed-form costs of each sub-block of a decoder: parameters, memory and FLOPs, without building the model.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "lehr/descriptor/block_config.h"
#include "lehr/nn/attention.h"

namespace lehr::descriptor {

/// Sizes of attention whose keys and values are projections of one latent per token (nn::MultiHeadLatentAttention).
struct LatentAttentionForm {
  int64_t q_lora_rank = 0;  ///< Rank of the projection of queries; 0: a single matrix.
  int64_t kv_lora_rank = 0;
  int64_t qk_nope_head_dim = 0;
  int64_t qk_rope_head_dim = 0;
  int64_t v_head_dim = 0;
  bool bias = false;  ///< Biases of the projections to latents, and of the output projection.
};

/// Heads of attention, which may be others in layers without a window.
struct AttentionHeadsForm {
  int64_t head_dim = 0;
  bool keys_as_values = false;  ///< No projection of values.
};

/// Sizes of gated DeltaNet (nn::GatedDeltaNet).
struct GatedDeltaNetForm {
  int64_t num_key_heads = 0;
  int64_t num_value_heads = 0;
  int64_t key_head_dim = 0;
  int64_t value_head_dim = 0;
  int64_t conv_kernel = 0;
};

/// Sizes of Mamba-2 (nn::Mamba2).
struct Mamba2Form {
  int64_t num_heads = 0;
  int64_t head_dim = 0;
  int64_t num_groups = 0;
  int64_t state_size = 0;
  int64_t conv_kernel = 0;
  bool conv_bias = true;
};

/// Sizes that the sub-blocks of a decoder share, and flags for weights other than their matrices. A family sets the
/// flags, a model's config the sizes.
struct DecoderForm {
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t num_attention_heads = 0;  ///< Query heads.
  int64_t head_dim = 0;             ///< May differ from hidden_size / num_attention_heads.
  int64_t head_rows = 0;            ///< Rows of the output matrix: vocab_size, the labels of a classifier, or 0 without
                                    ///< a head.
  bool head_bias = false;           ///< A bias for each of these rows.
  bool tied_head = false;           ///< The head shares the embeddings' matrix, which is stored and counted once.
  int64_t attention_norms = 1;      ///< Norms of hidden_size weights that belong to the attention: 2 with a norm before
                                    ///< and one after it (sandwich norms).
  int64_t ffn_norms = 1;            ///< The same of the feed-forward block; 0 if it uses the attention's norm.
  bool qk_norm = false;             ///< Norms of queries and keys.
  nn::QKNormWidth qk_norm_width = nn::QKNormWidth::head;  ///< Weights of each: head_dim, or one per element of all
                                                          ///< heads.
  bool qkv_bias = false;                                  ///< Biases of the query, key and value projections.
  bool output_bias = false;                               ///< A bias of the output projection.
  bool output_gate = false;         ///< A gate per element of the output, projected with the queries.
  bool attention_sinks = false;     ///< A learned attention sink per query head.
  int64_t ffn_matrices = 3;         ///< Matrices of a feed-forward block or an expert: 3 with a gate, 2 without.
  bool ffn_bias = false;            ///< Biases of all of these matrices.
  bool router_bias = false;         ///< A router bias that is a parameter.
  bool router_scales = false;       ///< A factor per element of the router's input, and one per expert.
  bool shared_expert_gate = false;  ///< A gate of the shared expert's output.
  int64_t moe_latent_size = 0;      ///< Width of the tokens that routed experts map, between two projections; 0:
                                    ///< hidden_size.
  int64_t hidden_size_per_layer_input = 0;  ///< Width of the per-layer inputs; 0: there are none.
  int64_t num_kv_shared_layers = 0;         ///< The last layers, which attend to keys and values of earlier ones.
  std::vector<int64_t> windows = {};  ///< Tokens that a token of each layer sees at most by the model's keys, 0 for all
                                      ///< of them; empty: all layers see all.
  std::optional<AttentionHeadsForm> full_attention = {};     ///< Of layers without a window, if they differ.
  std::optional<LatentAttentionForm> latent_attention = {};  ///< The attention of all layers, if it is this one.
  std::optional<GatedDeltaNetForm> delta_net = {};
  std::optional<Mamba2Form> mamba2 = {};
  std::vector<int64_t> state_layers = {};  ///< The layers that have one of these in place of attention, ascending.

  bool has_states(size_t layer) const;
  /// Returns the window of a layer with this attention: its own, or that of the model's keys; 0: it sees all tokens.
  int64_t window(size_t layer, const AttentionSubblock& attention) const;
  /// Returns the heads of a layer with this window; 0: none.
  AttentionHeadsForm heads(int64_t window) const;
};

/// Whether a layer attends to the keys and values of an earlier one, in a model whose last `num_kv_shared_layers` do.
constexpr bool reads_keys_and_values(int64_t layer, int64_t num_layers, int64_t num_kv_shared_layers) {
  return layer >= num_layers - num_kv_shared_layers;
}

/// The use of a model that costs are computed for.
struct Workload {
  int64_t num_tokens = 4096;     ///< Length of a sequence, prompt and continuation.
  int64_t num_sequences = 1;     ///< Number of sequences in the cache.
  int64_t bytes_per_weight = 2;  ///< Bytes per weight; 2: bfloat16.
  int64_t bytes_per_cached = 2;  ///< Bytes per element of the KV cache; states of linear attention have at least 4.
};

/// The costs of a part of a model. FLOPs are those of matmuls and attention, for one sequence; norms, activations,
/// convolutions and positions are excluded. Those of gated DeltaNet and Mamba-2 are those of the recurrence, one token
/// after another, without the triangles that a scan by chunks adds. FLOPs and cache sizes may exceed the range of an
/// integer; up to 2^53 they are exact.
struct Account {
  int64_t num_parameters = 0;
  int64_t active_parameters = 0;  ///< Without the experts that a token is not routed to.
  int64_t weight_bytes = 0;
  double kv_cache_bytes = 0;  ///< For Workload::num_sequences sequences of num_tokens tokens, or of a window, if that
                              ///< is smaller; with latent attention the latents, with linear attention its state, whose
                              ///< size is independent of num_tokens.
  double prefill_flops = 0;   ///< All num_tokens tokens in one pass with causal attention; logits of the last one.
  double decode_flops = 0;    ///< One token, the last of num_tokens; the others are in the cache.

  Account& operator+=(const Account& other);
  bool operator==(const Account&) const = default;
};

/// The sub-blocks of a layer, each with its norms; a no-op is all zeros.
struct LayerAccount {
  Account attention;
  Account ffn;  ///< With the gate and the projection of the layer's own input, if it has one.

  Account total() const;
};

/// The costs of a model by its parts.
struct ModelAccount {
  Account embeddings;  ///< With the table and the projection of the per-layer inputs, if there are any.
  std::vector<LayerAccount> layers;
  Account head;  ///< The final norm and the output matrix, of which a tied one counts in FLOPs only.

  /// The sum over the layers.
  Account all_layers() const;
  Account total() const;
};

/// Throws a usage error if the model is so large that its parameters cannot be counted. Any workload is supported.
ModelAccount account_for(const DecoderForm& form, const std::vector<BlockConfig>& blocks, const Workload& work);

}  // namespace lehr::descriptor
