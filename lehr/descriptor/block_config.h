// The configs of the layers of a heterogeneous model: one BlockConfig per layer, as in config.json.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

namespace lehr {
class Node;
}

namespace lehr::descriptor {

/// Grouped-query attention.
struct AttentionSubblock {
  int64_t num_key_value_heads;  ///< Divides the model's num_attention_heads.
  int64_t window = 0;           ///< The layer's own sliding window, in tokens with its own; 0: that of the model's keys
                                ///< (layer_types, sliding_window), if they give the layer one.
  bool operator==(const AttentionSubblock&) const = default;
};

/// One gated feed-forward block.
struct FFNSubblock {
  int64_t intermediate_size;  ///< Inner width.
  bool operator==(const FFNSubblock&) const = default;
};

/// The value that puzzletron writes as shared_expert_intermediate_dim for every MoE model, with or without shared
/// experts.
inline constexpr int64_t kPuzzletronSharedExpert = 8192;

/// An MoE layer.
struct MoESubblock {
  int64_t num_local_experts;                   ///< Experts of the layer.
  int64_t num_experts_per_tok;                 ///< Experts per token.
  int64_t expert_intermediate_dim;             ///< Inner width of an expert.
  int64_t shared_expert_intermediate_dim = 0;  ///< Inner width of the shared expert; 0: none.
  bool operator==(const MoESubblock&) const = default;
};

/// One linear layer without a bias in place of a sub-block (Puzzle, https://arxiv.org/abs/2411.19146): the weight is
/// (hidden_size, hidden_size), norms stay, and there is no cache. Tensors have the names of Nemotron-NAS:
/// self_attn.linear_attn.weight, mlp.linear_mlp.weight.
struct LinearSubblock {
  bool operator==(const LinearSubblock&) const = default;
};

/// A removed sub-block: the residual stream passes through. No weights, no norm, no computation, no cache.
struct NoOpSubblock {
  bool operator==(const NoOpSubblock&) const = default;
};

/// One decoder layer.
struct BlockConfig {
  std::variant<AttentionSubblock, LinearSubblock, NoOpSubblock> attention;
  std::variant<FFNSubblock, MoESubblock, LinearSubblock, NoOpSubblock> ffn;

  bool attention_is_no_op() const { return std::holds_alternative<NoOpSubblock>(attention); }
  bool ffn_is_no_op() const { return std::holds_alternative<NoOpSubblock>(ffn); }
  bool attention_is_linear() const { return std::holds_alternative<LinearSubblock>(attention); }
  bool ffn_is_linear() const { return std::holds_alternative<LinearSubblock>(ffn); }
  bool is_moe() const { return std::holds_alternative<MoESubblock>(ffn); }
  bool operator==(const BlockConfig&) const = default;
};

/// A short description of the layer, such as "4 KV heads, window 512, FFN 1024" or "no attention, 8 experts of 64, 2
/// per token".
std::string describe(const BlockConfig& block);

/// Throws a usage error that names the field, prefixed with `where` (such as "config.json: block_configs[3]."), for a
/// size that is not positive, a negative window, KV heads that do not divide the query heads, or more experts per token
/// than experts.
void check_block_config(const BlockConfig& block, const std::string& where, int64_t num_attention_heads);

/// The layers of a model as the keys of its config.json other than block_configs describe them.
struct LayersByDefault {
  std::vector<BlockConfig> blocks;  ///< One per layer, from the keys that apply to all layers.
  int64_t hidden_size = 0;
  int64_t num_attention_heads = 0;
};

/// Returns the block configs of a config.json, one per layer, or nullopt if it has none. Reads these formats and checks
/// all names and values:
/// - `block_configs` of puzzletron: {"attention": {"num_key_value_heads"}, "ffn": {"intermediate_size"} or
///   {"moe": {...}}}, either with "no_op" or "replace_with_linear", for which sizes are not used. The attention may
///   have Nemotron-NAS's "window_length", a window of its own, which puzzletron has no key for;
/// - `block_configs` of Nemotron-NAS: "n_heads_in_group" (query heads per KV head), "ffn_mult" (the inner width is
///   2/3 ffn_mult hidden_size, rounded up to a multiple of 256);
/// - `per_layer_config`, {"3": {"num_key_value_heads": 2, "skip": ["mlp"]}}: the differences from `by_default`.
///
/// Throws a usage error that names file, key and layer for an unknown key, a value out of range, a wrong number of
/// layers, or a feature that no family supports (2:4 sparsity, Mamba, Llama 4, sink tokens).
std::optional<std::vector<BlockConfig>> read_block_configs(const Node& config, const LayersByDefault& by_default);

/// Returns the value of `block_configs` in puzzletron's format, with every key, and window_length where a layer has a
/// window of its own.
Node write_block_configs(const std::vector<BlockConfig>& blocks);

}  // namespace lehr::descriptor
