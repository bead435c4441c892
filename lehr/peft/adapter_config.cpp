#include "lehr/peft/adapter_config.h"

#include <set>

#include "lehr/base/error.h"
#include "lehr/base/open_file.h"
#include "lehr/config/json.h"
#include "lehr/config/node.h"

namespace lehr::peft {

namespace {
namespace fs = std::filesystem;

// Rejects fields of unsupported variants of LoRA.
void refuse_variants(const Node& config, const std::string& file) {
  for (const char* key :
       {"use_dora",
        "use_qalora",
        "use_bdlora",
        "fan_in_fan_out",
        "lora_bias",
        "trainable_token_indices",
        "target_parameters",
        "alora_invocation_tokens",
        "arrow_config",
        "kasa_config",
        "monteclora_config",
        "layer_replication",
        "megatron_config"}) {
    const Node* value = config.find(key);
    const bool off = value == nullptr || value->is_null() || (value->is_bool() && !value->as_bool()) ||
                     (value->is_list() && value->size() == 0) || (value->is_table() && value->size() == 0);
    require(off, "{}: {}: this variant of LoRA is not supported; expected false or an empty value", file, key);
  }
  // Other initializations change the base model too, so it is not the one that the file names.
  const Node* init = config.find("init_lora_weights");
  const std::set<std::string> harmless{"gaussian", "orthogonal", "eva"};
  require(
      init == nullptr || !init->is_string() || harmless.contains(init->as_string()),
      "{}: init_lora_weights: adapters initialized with \"{}\" belong to a modified base model; convert them with "
      "PEFT's path_initial_model_for_weight_conversion first",
      file,
      init != nullptr && init->is_string() ? init->as_string() : "");
  const Node* bias = config.find("bias");
  require(
      bias == nullptr || (bias->is_string() && bias->as_string() == "none"),
      "{}: bias: adapters with biases are not supported; expected \"none\"",
      file);
}

// PEFT's rule for rank_pattern and alpha_pattern: the key matches the end of the name, from a dot on.
FilePattern pattern_of(const std::string& key, const std::string& where) {
  return {"(.*\\.)?(" + key + ")", where};
}

template <class T>
T by_pattern(const std::vector<std::pair<FilePattern, T>>& patterns, const std::string& module, T usual) {
  for (const auto& [pattern, value] : patterns) {
    if (pattern.matches(module)) {
      return value;
    }
  }
  return usual;
}

double optional_number(const Node& config, const char* key, double usual) {
  const Node* value = config.find(key);
  return value == nullptr || value->is_null() ? usual : value->as_double();
}
}  // namespace

Lora settings_for(const AdapterInfo& info, const std::string& module) {
  Lora settings = info.lora;
  settings.r = by_pattern(info.rank_pattern, module, settings.r);
  settings.alpha = by_pattern(info.alpha_pattern, module, settings.alpha);
  return settings;
}

AdapterInfo read_adapter_config(const std::filesystem::path& folder) {
  const fs::path path = path_beneath(folder, kAdapterConfigFile);
  const std::string file = path.string();
  const Node config = parse_json_file(path);
  const std::string type = config.at("peft_type").as_string();
  require(type == "LORA", "{}: peft_type: expected \"LORA\", found \"{}\"", file, type);
  refuse_variants(config, file);
  AdapterInfo info{.folder = folder, .base_model = {}, .lora = {}};
  const Node* base = config.find("base_model_name_or_path");
  if (base != nullptr && base->is_string()) {
    info.base_model = base->as_string();
  }
  info.lora.r = config.at("r").as_int();
  info.lora.alpha = config.at("lora_alpha").as_double();
  info.lora.dropout = optional_number(config, "lora_dropout", 0);
  require(
      info.lora.dropout >= 0 && info.lora.dropout < 1,
      "{}: lora_dropout: expected a number from 0 and below 1, found {}",
      file,
      info.lora.dropout);
  const Node* rslora = config.find("use_rslora");
  info.lora.use_rslora = rslora != nullptr && !rslora->is_null() && rslora->as_bool();
  if (const Node* ranks = config.find("rank_pattern"); ranks != nullptr && ranks->is_table()) {
    for (const auto& [pattern, rank] : ranks->entries()) {
      info.rank_pattern.emplace_back(pattern_of(pattern, file + ": rank_pattern"), rank.as_int());
    }
  }
  if (const Node* alphas = config.find("alpha_pattern"); alphas != nullptr && alphas->is_table()) {
    for (const auto& [pattern, alpha] : alphas->entries()) {
      info.alpha_pattern.emplace_back(pattern_of(pattern, file + ": alpha_pattern"), alpha.as_double());
    }
  }
  return info;
}

}  // namespace lehr::peft
