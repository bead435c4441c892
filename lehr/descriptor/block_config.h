// What the layers of a heterogeneous model are: one BlockConfig a layer, as config.json keeps them.
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
  bool operator==(const AttentionSubblock&) const = default;
};

/// One gated feed-forward block.
struct FFNSubblock {
  int64_t intermediate_size;  ///< Inner width.
  bool operator==(const FFNSubblock&) const = default;
};

/// What puzzletron writes as shared_expert_intermediate_dim of every model with experts, shared ones or not.
inline constexpr int64_t kUpstreamsSharedExpert = 8192;

/// A mixture of experts.
struct MoESubblock {
  int64_t num_local_experts;                   ///< Experts of the layer.
  int64_t num_experts_per_tok;                 ///< Experts a token goes to.
  int64_t expert_intermediate_dim;             ///< Inner width of an expert.
  int64_t shared_expert_intermediate_dim = 0;  ///< Inner width of the expert that all tokens go to; 0: there is none.
  bool operator==(const MoESubblock&) const = default;
};

/// Nothing: hidden states pass by. No weights, no norm before it, no computation, no cache.
struct NoOpSubblock {
  bool operator==(const NoOpSubblock&) const = default;
};

/// One decoder layer.
struct BlockConfig {
  std::variant<AttentionSubblock, NoOpSubblock> attention;
  std::variant<FFNSubblock, MoESubblock, NoOpSubblock> ffn;

  bool attention_is_no_op() const { return std::holds_alternative<NoOpSubblock>(attention); }
  bool ffn_is_no_op() const { return std::holds_alternative<NoOpSubblock>(ffn); }
  bool is_moe() const { return std::holds_alternative<MoESubblock>(ffn); }
  bool operator==(const BlockConfig&) const = default;
};

/// The layer in a few words, as "4 KV heads, FFN 1024" or "no attention, 8 experts of 64, 2 a token".
std::string describe(const BlockConfig& block);

/// Throws a usage error that names the field, behind `where` (as "config.json: block_configs[3]."), for a size that is
/// not positive, KV heads that do not divide the query heads, or more experts a token than there are.
void check_block_config(const BlockConfig& block, const std::string& where, int64_t num_attention_heads);

/// What a config.json says of the layers beside their block configs.
struct LayersByDefault {
  std::vector<BlockConfig> blocks;  ///< One a layer, from the keys that hold for all of them.
  int64_t hidden_size = 0;
  int64_t num_attention_heads = 0;
};

/// The block configs of a config.json, one a layer; nothing if it has none. Reads, and checks by name and value,
/// - `block_configs` as puzzletron writes it: {"attention": {"num_key_value_heads"}, "ffn": {"intermediate_size"} or
///   {"moe": {...}}}, either with "no_op";
/// - `block_configs` of Nemotron-NAS: "n_heads_in_group" (query heads a KV head), "ffn_mult" (the inner width is
///   2/3 ffn_mult hidden_size, up to a multiple of 256);
/// - `per_layer_config`, {"3": {"num_key_value_heads": 2, "skip": ["mlp"]}}: what differs from `by_default`.
///
/// Throws a usage error that names file, key and layer for an unknown key, a value out of range, another number of
/// layers, or what no family here computes (linear replacements, 2:4 sparsity, Mamba, Llama 4, windows, sinks).
std::optional<std::vector<BlockConfig>> read_block_configs(const Node& config, const LayersByDefault& by_default);

/// The value of `block_configs`: puzzletron's dialect, with every key.
Node write_block_configs(const std::vector<BlockConfig>& blocks);

}  // namespace lehr::descriptor
