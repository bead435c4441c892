#include "lehr/descriptor/model_args.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "lehr/base/error.h"
#include "lehr/base/open_file.h"
#include "lehr/config/json.h"
#include "lehr/config/suggest.h"
#include "lehr/descriptor/text_config.h"
#include "lehr/state/checkpoint.h"

namespace lehr::descriptor {

ExpertLayout expert_layout_of(const std::vector<std::string>& stored_names) {
  const bool fused = std::any_of(stored_names.begin(), stored_names.end(), [](const std::string& name) {
    return name.ends_with(".experts.gate_up_proj") || name.ends_with(".experts.down_proj");
  });
  return fused ? ExpertLayout::fused : ExpertLayout::per_expert;
}

void ModelOverrides::fields(FieldVisitor& v) {
  v.optional("vocab_size", vocab_size, "Vocabulary size; at least the tokenizer's.", positive());
  v.optional("hidden_size", hidden_size, "Width of the residual stream.", positive());
  v.optional("intermediate_size", intermediate_size, "Inner width of the feed-forward block.", positive());
  v.optional("num_hidden_layers", num_hidden_layers, "Number of layers.", positive());
  v.optional("num_attention_heads", num_attention_heads, "Number of query heads.", positive());
  v.optional(
      "num_key_value_heads",
      num_key_value_heads,
      "Number of key and value heads; divides num_attention_heads.",
      positive());
  v.optional("head_dim", head_dim, "Width of an attention head; even.", positive());
  v.optional("max_position_embeddings", max_position_embeddings, "Maximum sequence length.", positive());
  v.optional("rope_theta", rope_theta, "Base of the rotary frequencies.", positive());
  v.optional("rms_norm_eps", rms_norm_eps, "Epsilon of every RMSNorm.", positive());
  v.optional("initializer_range", initializer_range, "Standard deviation of initial weights.", positive());
  v.optional("tie_word_embeddings", tie_word_embeddings, "Share the weights of the embeddings and the head.");
  v.optional("num_experts", num_experts, "MoE: number of experts per layer.", positive());
  v.optional("num_experts_per_tok", num_experts_per_tok, "MoE: number of experts per token (top-k).", positive());
  v.optional("moe_intermediate_size", moe_intermediate_size, "MoE: inner width of an expert.", positive());
  v.optional("norm_topk_prob", norm_topk_prob, "MoE: normalize the probabilities of a token's experts to sum to one.");
  v.optional(
      "decoder_sparse_step",
      decoder_sparse_step,
      "MoE: every n-th layer has experts, the others a dense SwiGLU.",
      positive());
  v.optional(
      "expert_bias",
      expert_bias,
      "MoE: select experts by probability + bias, which training.load_balance_coeff updates; results are weighted by "
      "the probability alone.");
  v.optional("mlp_only_layers", mlp_only_layers, "MoE: indices of layers without experts, from 0.", at_least(0));
  v.optional(
      "split_vocab_size",
      split_vocab_size,
      "Vocabulary split into named segments with a table each, such as { text = 151643, added = 26 }; they sum to "
      "vocab_size.",
      positive());
  v.optional("split_vocab_order", split_vocab_order, "Names of the segments in the order of their ids.");
  v.others(config_keys, "Keys of the family's config.json, such as sliding_window or kv_lora_rank.");
}

void ModelArgs::set_block_configs(std::vector<BlockConfig>) {
  fail("block_configs: models of type {} do not support layers that differ", model_type());
}

void ModelFamilies::add(ModelFamily family) {
  for (const auto& known : families_) {
    require(
        known.name != family.name,
        "model family '{}': the name is already taken; register it under another",
        family.name);
    for (const auto& type : family.hf_model_types) {
      require(
          std::find(known.hf_model_types.begin(), known.hf_model_types.end(), type) == known.hf_model_types.end(),
          "model family '{}': model_type '{}' is already read by '{}'",
          family.name,
          type,
          known.name);
    }
  }
  families_.push_back(std::move(family));
}

namespace {
template <class Range>
std::string unknown_word(const std::string& subject, const std::string& word, const Range& known) {
  const std::vector<std::string> words(known.begin(), known.end());
  const auto nearest = suggest(word, words);
  return fmt::format(
      "{}: '{}' is not known{}; known: {}",
      subject,
      word,
      nearest ? fmt::format(", did you mean '{}'", *nearest) : "",
      fmt::join(words, ", "));
}
}  // namespace

std::vector<std::string> ModelFamilies::names() const {
  std::vector<std::string> names;
  for (const auto& family : families_) {
    names.push_back(family.name);
  }
  return names;
}

const ModelFamily& ModelFamilies::at(const std::string& name) const {
  for (const auto& family : families_) {
    if (family.name == name) {
      return family;
    }
  }
  fail("{}", unknown_word("model.name", name, names()));
}

namespace {
namespace fs = std::filesystem;

fs::path config_file(const fs::path& folder) {
  if (!fs::is_directory(folder)) {
    const bool may_be_of_hub = folder.is_relative() && std::distance(folder.begin(), folder.end()) == 2;
    require(
        fs::exists(folder),
        "{}: no such folder{}",
        folder.string(),
        may_be_of_hub
            ? "; a model of the Hugging Face Hub gets there by: hf download OWNER/NAME --local-dir " + folder.string()
            : "");
    return folder;
  }
  if (!fs::exists(folder / "config.json")) {
    require(
        !fs::exists(folder / "adapter_config.json"),
        "{}: holds adapters, not a model; `lehr merge` makes a model of them and their base",
        folder.string());
    fail("{}: the folder has no config.json, so it holds no model{}", folder.string(), state::meant_checkpoint(folder));
  }
  return path_beneath(folder, "config.json");
}
}  // namespace

const ModelFamily& ModelFamilies::of_hf_folder(const std::filesystem::path& folder) const {
  const auto file = config_file(folder);
  const std::string type = text_config_of(parse_json_file(file)).at("model_type").as_string();
  std::vector<std::string> types;
  for (const auto& family : families_) {
    for (const auto& known : family.hf_model_types) {
      if (known == type) {
        return family;
      }
      types.push_back(known);
    }
  }
  fail("{}", unknown_word(file.string() + ": model_type", type, types));
}

std::unique_ptr<ModelArgs> ModelFamilies::from_hf_folder(const std::filesystem::path& folder) const {
  return of_hf_folder(folder).from_hf_folder(folder);
}

std::unique_ptr<ModelArgs> ModelFamilies::from_flavor(const std::string& name, const std::string& flavor) const {
  return at(name).from_flavor(flavor);
}

namespace {
const ModelDescriptor& descriptor_in(const ModelFamily& family) {
  require(
      family.descriptor != nullptr,
      "model family '{}': has no descriptor, without which its blocks cannot be scored, removed or replaced; to add one, set "
      "ModelFamily::descriptor where the family is defined (docs/descriptors.md)",
      family.name);
  return *family.descriptor;
}
}  // namespace

const ModelDescriptor& ModelFamilies::descriptor(const std::string& name) const {
  return descriptor_in(at(name));
}

const ModelDescriptor& ModelFamilies::descriptor_of_hf_folder(const std::filesystem::path& folder) const {
  return descriptor_in(of_hf_folder(folder));
}

std::unique_ptr<ModelArgs> ModelFamily::from_hf_folder(const std::filesystem::path& folder) const {
  const auto file = config_file(folder);
  auto args = from_hf_config(text_config_of(parse_json_file(file)));
  args->check(file.string() + ": ");
  return args;
}

std::unique_ptr<ModelArgs> ModelFamily::from_flavor(const std::string& flavor) const {
  const auto found = flavors.find(flavor);
  if (found == flavors.end()) {
    std::vector<std::string> names;
    for (const auto& [known, make] : flavors) {
      names.push_back(known);
    }
    fail("{}", unknown_word("model.flavor", flavor, names));
  }
  return found->second();
}

}  // namespace lehr::descriptor
