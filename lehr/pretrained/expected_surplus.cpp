#include "lehr/pretrained/expected_surplus.h"

#include <algorithm>
#include <filesystem>
#include <vector>

#include "lehr/base/error.h"
#include "lehr/base/open_file.h"
#include "lehr/config/json.h"
#include "lehr/descriptor/config_update.h"
#include "lehr/descriptor/text_config.h"
#include "lehr/state/weights.h"

namespace lehr::pretrained {

namespace {
// The beginnings of names of layers for multi-token prediction, which follow the model's or are those of a module of
// their own (Qwen3-Next, whose config.json does not count them).
std::vector<std::string> mtp_prefixes(const Node& config) {
  const Node* type = config.find("model_type");
  const std::string type_name = type != nullptr && type->is_string() ? type->as_string() : "";
  std::vector<std::string> prefixes;
  if (type_name == "qwen3_next" || type_name == "nemotron_h" || type_name.starts_with("qwen3_5")) {
    prefixes.emplace_back("mtp.");
  }
  const Node* own = config.find("num_hidden_layers");
  const Node* more = config.find(type_name == "minimax_m2" ? "num_mtp_modules" : descriptor::kMtpModulesKey);
  constexpr int64_t kMost = 64;
  const bool has_one = type_name == "deepseek_v3" || type_name == "kimi_k2" || type_name == "glm4_moe";
  int64_t count = has_one ? 1 : 0;  // without the key
  if (more != nullptr && more->is_int()) {
    count = std::min(more->as_int(), kMost);
  }
  if (own != nullptr && own->is_int()) {
    for (int64_t i = 0; i < count; ++i) {
      prefixes.push_back(fmt::format("model.layers.{}.", own->as_int() + i));
    }
  }
  return prefixes;
}

// Prefixes of projections and norms that published Gemma 4 checkpoints contain for layers that read the keys and values
// of earlier ones. No model uses them.
std::vector<std::string> unused_key_value_prefixes(const Node& config) {
  const Node text = descriptor::text_config_of(config);
  const auto int_of = [&text](const char* key) {
    const Node* found = text.find(key);
    return found != nullptr && found->is_int() ? found->as_int() : 0;
  };
  constexpr int64_t kMost = 4096;  // layers of any model
  const Node* type = text.find("model_type");
  const int64_t layers = std::min(int_of("num_hidden_layers"), kMost), shared = int_of("num_kv_shared_layers");
  if (type == nullptr || !type->is_string() || type->as_string() != "gemma4_text" || shared <= 0 || shared > layers) {
    return {};
  }
  const std::string own = "model.";
  auto models = descriptor::text_model_prefixes(own);
  models.push_back(own);
  std::vector<std::string> prefixes;
  for (int64_t layer = layers - shared; layer < layers; ++layer) {
    for (const std::string& model : models) {
      for (const char* module : {"k_proj", "v_proj", "k_norm", "v_norm"}) {
        prefixes.push_back(fmt::format("{}layers.{}.self_attn.{}.", model, layer, module));
      }
    }
  }
  return prefixes;
}

state::NameSet parts_to_leave_out(const std::filesystem::path& folder) {
  const std::filesystem::path file = path_beneath(folder, "config.json");
  const Node config = std::filesystem::is_regular_file(file) ? parse_json_file(file) : Node();
  if (!config.is_table()) {
    return {};
  }
  state::NameSet parts;
  for (const auto& prefixes :
       {mtp_prefixes(config), descriptor::image_encoder_prefixes(config), unused_key_value_prefixes(config)}) {
    parts.insert(prefixes.begin(), prefixes.end());
  }
  return parts;
}
}  // namespace

ExpectedSurplus::ExpectedSurplus(const state::WeightReader& reader, const state::NameSet& wanted)
    : reader_(reader), wanted_(wanted), parts_(parts_to_leave_out(reader.path())) {}

bool ExpectedSurplus::is_of_part(const std::string& name) const {
  for (size_t dot = name.find('.'); dot != std::string::npos; dot = name.find('.', dot + 1)) {
    if (parts_.contains(name.substr(0, dot + 1))) {
      return true;
    }
  }
  return false;
}

bool ExpectedSurplus::contains(const std::string& name) const {
  if (name.ends_with("rotary_emb.inv_freq") || is_of_part(name)) {
    return true;
  }
  const std::string head = "lm_head.weight", own = "model.";
  if (name != head && name != descriptor::kTextModelPrefix + head) {
    return false;
  }
  if (wanted_.contains("score.weight")) {
    return true;
  }
  auto prefixes = descriptor::text_model_prefixes(own);
  prefixes.insert(prefixes.begin(), own);
  for (const std::string& prefix : prefixes) {
    const std::string embeddings = prefix + "embed_tokens.weight";
    require(
        !reader_.has(embeddings) || at::equal(reader_.tensor(name), reader_.tensor(embeddings)),
        "{}: {}: differs from {}, but the model ties them; set tie_word_embeddings to false",
        reader_.path().string(),
        name,
        embeddings);
  }
  return true;
}

}  // namespace lehr::pretrained
