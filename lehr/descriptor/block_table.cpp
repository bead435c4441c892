#include "lehr/descriptor/block_table.h"

#include <algorithm>

#include "lehr/base/error.h"
#include "lehr/base/log.h"
#include "lehr/descriptor/model_args.h"

namespace lehr::descriptor {

namespace {
using Row = std::vector<std::string>;

std::string count_cell(double count) {
  return count == 0 ? "-" : human_count(count);
}

std::string bytes_cell(double bytes) {
  return bytes == 0 ? "-" : human_bytes(bytes);
}

// The row of a layer, with the parameters of its sub-blocks.
Row row_of(const std::string& name, const std::string& attention, const std::string& ffn, const LayerAccount& layer) {
  const Account all = layer.total();
  return {
      name,
      attention,
      ffn,
      count_cell(static_cast<double>(layer.attention.num_parameters)),
      count_cell(static_cast<double>(layer.ffn.num_parameters)),
      count_cell(static_cast<double>(all.num_parameters)),
      bytes_cell(static_cast<double>(all.weight_bytes)),
      bytes_cell(all.kv_cache_bytes),
      count_cell(all.prefill_flops),
      count_cell(all.decode_flops)};
}

// The row of a part that is not a layer and has no sub-blocks.
Row row_of(const std::string& name, const Account& account) {
  Row row = row_of(name, "", "", {.attention = account, .ffn = {}});
  row[3] = row[4] = "";
  return row;
}

// Aligns names to the left and numbers to the right.
std::string aligned(const std::vector<Row>& rows) {
  constexpr size_t kNames = 3;
  std::vector<size_t> widths(rows.front().size(), 0);
  for (const Row& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) {
      widths[i] = std::max(widths[i], row[i].size());
    }
  }
  std::string text;
  for (const Row& row : rows) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      line += i == 0 ? "" : "  ";
      line += i < kNames ? fmt::format("{:<{}}", row[i], widths[i]) : fmt::format("{:>{}}", row[i], widths[i]);
    }
    text += line + "\n";
  }
  return text;
}
}  // namespace

ModelBlocks blocks_of(const ModelArgs& args, const Workload& work) {
  const auto form = args.decoder_form();
  if (!form) {
    fail(
        "models of type {}: their family has no decoder form (ModelArgs::decoder_form), so costs per layer cannot be "
        "computed",
        args.model_type());
  }
  std::vector<BlockConfig> blocks = args.block_configs();
  ModelAccount account = account_for(*form, blocks, work);
  return {.form = *form, .blocks = std::move(blocks), .work = work, .account = std::move(account)};
}

std::string attention_text(const ModelBlocks& model, size_t layer) {
  const BlockConfig& block = model.blocks[layer];
  const DecoderForm& form = model.form;
  const auto* attention = std::get_if<AttentionSubblock>(&block.attention);
  if (attention == nullptr) {
    return block.attention_is_linear() ? "linear" : "none";
  }
  if (form.delta_net && form.has_states(layer)) {
    return fmt::format("gated DeltaNet, {} heads", form.delta_net->num_value_heads);
  }
  if (form.mamba2 && form.has_states(layer)) {
    return fmt::format("Mamba-2, {} heads", form.mamba2->num_heads);
  }
  if (form.latent_attention) {
    return fmt::format(
        "latent of {} + {}", form.latent_attention->kv_lora_rank, form.latent_attention->qk_rope_head_dim);
  }
  const int64_t window = form.window(layer, *attention);
  const auto index = static_cast<int64_t>(layer), layers = static_cast<int64_t>(model.blocks.size());
  return fmt::format(
      "{} {}KV head{}{}",
      attention->num_key_value_heads,
      reads_keys_and_values(index, layers, form.num_kv_shared_layers) ? "shared " : "",
      attention->num_key_value_heads == 1 ? "" : "s",
      window > 0 ? fmt::format(", window {}", window) : "");
}

std::string ffn_text(const BlockConfig& block) {
  if (const auto* ffn = std::get_if<FFNSubblock>(&block.ffn)) {
    return fmt::format("{}", ffn->intermediate_size);
  }
  if (const auto* moe = std::get_if<MoESubblock>(&block.ffn)) {
    return fmt::format("{} of {} x {}", moe->num_experts_per_tok, moe->num_local_experts, moe->expert_intermediate_dim);
  }
  return block.ffn_is_linear() ? "linear" : "none";
}

std::string format_blocks(const ModelBlocks& model) {
  std::vector<Row> rows{
      {"layer",
       "attention",
       "feed-forward",
       "attn params",
       "ffn params",
       "params",
       "weights",
       "KV cache",
       "prefill FLOPs",
       "decode FLOPs"}};
  rows.push_back(row_of("embeddings", model.account.embeddings));
  for (size_t first = 0, end = 0; first < model.blocks.size(); first = end) {
    const std::string attention = attention_text(model, first);
    while (end < model.blocks.size() && model.blocks[end] == model.blocks[first] &&
           attention_text(model, end) == attention) {
      ++end;
    }
    const std::string name = end - first == 1 ? fmt::format("{}", first) : fmt::format("{}-{}, each", first, end - 1);
    const BlockConfig& block = model.blocks[first];
    rows.push_back(row_of(name, attention, ffn_text(block), model.account.layers[first]));
  }
  rows.push_back(row_of("head", model.account.head));
  rows.push_back(row_of("all", model.account.total()));
  const Account all = model.account.total();
  std::string text = fmt::format(
      "{} layer{} of width {}, {} query heads of {}{}; weights of {} bytes, cache of {}; {} sequence{} of {} tokens\n",
      model.blocks.size(),
      model.blocks.size() == 1 ? "" : "s",
      model.form.hidden_size,
      model.form.num_attention_heads,
      model.form.head_dim,
      model.form.full_attention ? fmt::format(" ({} without a window)", model.form.full_attention->head_dim) : "",
      model.work.bytes_per_weight,
      model.work.bytes_per_cached,
      model.work.num_sequences,
      model.work.num_sequences == 1 ? "" : "s",
      model.work.num_tokens);
  if (all.active_parameters != all.num_parameters) {
    text += fmt::format("{} of {} parameters are active for a token\n", all.active_parameters, all.num_parameters);
  }
  return text + "\n" + aligned(rows);
}

}  // namespace lehr::descriptor
