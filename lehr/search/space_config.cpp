// The keys of the section [space].
#include "lehr/search/space.h"

namespace lehr::search {

void SpaceConfig::fields(FieldVisitor& v) {
  v.optional("kv_heads", kv_heads, "Numbers of KV heads to try; unset: all divisors of a layer's.", positive());
  v.optional(
      "windows",
      windows,
      "Sliding windows of attention to try, in tokens, with all KV heads and with fewer; they save KV cache, FLOPs and "
      "time, and no parameters. Unset: only a layer's own.",
      positive());
  v.optional(
      "ffn_widths",
      ffn_widths,
      "Widths of feed-forward blocks to try; unset: 3/4, 1/2, 1/4 and 1/8 of a layer's, in steps of 8.",
      positive());
  v.optional(
      "experts",
      experts,
      "Numbers of experts to try; unset: the same shares, but no fewer than a token needs.",
      positive());
  v.optional(
      "expert_widths", expert_widths, "Widths of experts to try; unset: the same shares, in steps of 8.", positive());
  v.optional(
      "experts_per_token",
      experts_per_token,
      "Numbers of experts per token to try; smaller ones save FLOPs, but no memory. Unset: only a layer's own.",
      positive());
  v.optional(
      "shared_expert_widths",
      shared_expert_widths,
      "Widths of the shared expert to try, with each number and width of the other experts; unset: only a layer's own.",
      positive());
  v.optional("attention_linear", attention_linear, "Try one linear layer in place of the attention.");
  v.optional("ffn_linear", ffn_linear, "Try one linear layer in place of a feed-forward block or MoE layer.");
  v.optional("attention_no_op", attention_no_op, "Try layers without attention.");
  v.optional("ffn_no_op", ffn_no_op, "Try layers without a feed-forward block.");
  v.optional("sizes", sizes, "Try smaller sub-blocks and linear layers. false: only layers without a sub-block.");
}

void SpaceConfig::check(Problems& problems) const {
  for (const auto& [key, listed] :
       {std::pair("kv_heads", &kv_heads),
        std::pair("windows", &windows),
        std::pair("ffn_widths", &ffn_widths),
        std::pair("experts", &experts),
        std::pair("expert_widths", &expert_widths),
        std::pair("experts_per_token", &experts_per_token),
        std::pair("shared_expert_widths", &shared_expert_widths)}) {
    if (!sizes && !listed->empty()) {
      problems.add(fmt::format("space.{}", key), "has no effect with space.sizes = false; remove one of them");
    }
  }
}

}  // namespace lehr::search
