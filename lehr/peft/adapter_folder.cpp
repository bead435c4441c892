#include "lehr/peft/adapter_folder.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "lehr/base/error.h"
#include "lehr/config/node_list.h"
#include "lehr/descriptor/text_config.h"
#include "lehr/peft/inject.h"
#include "lehr/state/weights.h"

namespace lehr::peft {

namespace {
namespace fs = std::filesystem;

std::string last_word(const std::string& module) {
  return module.substr(module.rfind('.') + 1);
}

Node number(double value) {
  return value == std::floor(value) && std::abs(value) < 1e15 ? Node(static_cast<int64_t>(value)) : Node(value);
}

// Last components ("q_proj") if they identify exactly the adapted modules, otherwise whole names.
std::vector<std::string> target_modules(
    const std::vector<std::string>& adapted, const std::vector<StoredName>& base_names) {
  const std::set<std::string> chosen(adapted.begin(), adapted.end());
  std::set<std::string> words;
  for (const auto& module : adapted) {
    words.insert(last_word(module));
  }
  for (const StoredName& entry : base_names) {
    const std::string module = module_of(entry.stored);
    if (words.contains(last_word(module)) && !chosen.contains(module)) {
      return adapted;
    }
  }
  return {words.begin(), words.end()};
}

// The kinds of tasks have PEFT's names.
const char* task_type_of(descriptor::Head head) {
  return head == descriptor::Head::causal_lm              ? "CAUSAL_LM"
         : head == descriptor::Head::token_classification ? "TOKEN_CLS"
         : head == descriptor::Head::embedding            ? "FEATURE_EXTRACTION"
                                                          : "SEQ_CLS";
}
}  // namespace

bool is_adapter_folder(const fs::path& folder) {
  std::error_code ignored;
  return fs::exists(folder / kAdapterConfigFile, ignored);
}

std::vector<StoredName> stored_names(const fs::path& adapter_folder, const descriptor::ModelArgs& args) {
  const state::WeightReader reader(adapter_folder, kAdapterStem);
  const auto has_any = [&](const std::vector<StoredName>& names) {
    return std::any_of(names.begin(), names.end(), [&](const StoredName& entry) {
      return reader.has(kAdapterPrefix + module_of(entry.stored) + ".lora_A.weight") ||
             reader.has(kAdapterPrefix + entry.stored);
    });
  };
  const auto plain = stored_names(args);
  // Of an adapter that was trained on the multimodal model, of which `args` is the text model. Before transformers 4.52
  // the head was part of the text model there.
  const std::string modules = "model.", text = descriptor::kTextModelPrefix;
  for (const std::string& prefix : descriptor::text_model_prefixes(modules)) {
    const bool head_is_inside = prefix.starts_with(text);
    auto whole = plain;
    std::vector<StoredName> of_backbone;  // the head may have the same name in both
    for (StoredName& entry : whole) {
      if (entry.stored.starts_with(modules)) {
        entry.stored.replace(0, modules.size(), prefix);
        of_backbone.push_back(entry);
      } else if (head_is_inside) {
        entry.stored.insert(0, text);
      }
    }
    if (has_any(of_backbone)) {
      return whole;
    }
  }
  const auto of_checkpoint = stored_names(args.state_map(descriptor::ExpertLayout::per_expert));
  return has_any(of_checkpoint) ? of_checkpoint : plain;
}

Node adapter_config(
    const torch::nn::Module& model,
    const std::vector<StoredName>& base_names,
    descriptor::Head head,
    const std::string& base_model) {
  const auto adapted = adapted_layers(model);
  require(!adapted.empty(), "adapter_config.json: the model has no adapters");
  const Lora& usual = adapted.front().lora->settings();
  std::vector<std::string> modules;
  Node ranks = Node::make_table();
  Node alphas = Node::make_table();
  for (const auto& [name, layer, adapter, lora] : adapted) {
    const Lora& own = lora->settings();
    require(
        own.use_rslora == usual.use_rslora && own.dropout == usual.dropout,
        "adapter_config.json: {} and {} differ in dropout or use_rslora, which the file stores once for all layers",
        adapted.front().name,
        name);
    for (const auto& module : stored_modules(name, base_names)) {
      modules.push_back(module);
      if (own.r != usual.r) {
        ranks.set(module, Node(own.r));
      }
      if (own.alpha != usual.alpha) {
        alphas.set(module, number(own.alpha));
      }
    }
  }
  std::vector<std::string> tuned;
  for (const StoredName& entry : tuned_stored_names(model, base_names, tuned_tensors(model, base_names))) {
    const std::string module = module_of(entry.stored.substr(std::string(kAdapterPrefix).size()));
    if (tuned.empty() || tuned.back() != module) {
      tuned.push_back(module);
    }
  }
  Node config = Node::make_table();
  config.set("peft_type", Node("LORA"));
  config.set("task_type", Node(task_type_of(head)));
  config.set("base_model_name_or_path", Node(base_model));
  config.set("r", Node(usual.r));
  config.set("lora_alpha", number(usual.alpha));
  config.set("lora_dropout", Node(usual.dropout));
  config.set("use_rslora", Node(usual.use_rslora));
  config.set("target_modules", node_list(target_modules(modules, base_names)));
  config.set("modules_to_save", tuned.empty() ? Node() : node_list(tuned));
  config.set("rank_pattern", ranks);
  config.set("alpha_pattern", alphas);
  config.set("bias", Node("none"));
  config.set("fan_in_fan_out", Node(false));
  config.set("init_lora_weights", Node(true));
  config.set("use_dora", Node(false));
  config.set("inference_mode", Node(true));
  return config;
}

std::vector<StoredName> add_adapters_of(
    const AdapterInfo& info, torch::nn::Module& model, const std::vector<StoredName>& base_names) {
  const state::WeightReader reader(info.folder, kAdapterStem);
  std::vector<std::pair<std::string, Lora>> layers;
  std::set<std::string> seen;
  std::set<std::string> tuned;
  for (const StoredName& entry : base_names) {
    const std::string module = module_of(entry.stored);
    if (reader.has(kAdapterPrefix + entry.stored)) {
      tuned.insert(entry.stored);
    }
    if (entry.parameter.ends_with(".weight") && reader.has(kAdapterPrefix + module + ".lora_A.weight")) {
      const std::string layer = module_of(entry.parameter);
      if (seen.insert(layer).second) {  // each expert has an adapter
        layers.emplace_back(layer, settings_for(info, module));
        // Before memory for a rank of any size is allocated.
        const auto& shape = reader.info(kAdapterPrefix + module + ".lora_A.weight").shape;
        const int64_t r = layers.back().second.r;
        require(
            r > 0 && shape.size() == 2 && shape.front() == r,
            "{}: r: expected the rank of {}, whose lora_A has shape ({}), found {}",
            (info.folder / kAdapterConfigFile).string(),
            module,
            fmt::join(shape, ", "),
            r);
      }
    }
  }
  require(
      !layers.empty() || !tuned.empty(),
      "{}: contains no adapter for a module of this model; is it the adapter of another model?",
      reader.path().string());
  require_one_table(info.folder, model, base_names);
  add_lora(model, layers);
  return adapter_stored_names(model, base_names, tuned);
}

void require_one_table(
    const fs::path& adapter_folder, const torch::nn::Module& model, const std::vector<StoredName>& base_names) {
  const auto heads = tied_head_names(model, base_names);
  const auto embeddings = std::find_if(base_names.begin(), base_names.end(), [&](const StoredName& entry) {
    return !heads.empty() && entry.parameter == heads.front().parameter;
  });
  if (embeddings == base_names.end()) {
    return;
  }
  const state::WeightReader reader(adapter_folder, kAdapterStem);
  const std::string table = kAdapterPrefix + embeddings->stored, head = kAdapterPrefix + heads.front().stored;
  const bool has_table = reader.has(table), has_head = reader.has(head);
  if (!has_table && !has_head) {
    return;
  }
  const auto equal = [&] {
    const at::Tensor one = reader.tensor(table);
    return at::equal(one, reader.tensor(head).to(one.scalar_type()));
  };
  require(
      has_table && has_head && equal(),
      "{}: the model ties its head to its embeddings, but the adapter has {}; merge it with PEFT (merge_and_unload), "
      "set tie_word_embeddings of the merged model's config to false, and save that model",
      reader.path().string(),
      has_table && has_head ? "other weights in " + head + " than in " + table
                            : "weights for one of the two only, " + (has_table ? table : head));
}

void require_same_scaling(
    const AdapterInfo& info, const torch::nn::Module& model, const std::vector<StoredName>& base_names) {
  for (const auto& [name, layer, adapter, lora] : adapted_layers(model)) {
    const double there = settings_for(info, stored_modules(name, base_names).front()).scaling();
    require(
        there == lora->settings().scaling(),
        "{}: {}: the adapter's scaling is {} (r {}, lora_alpha {}, use_rslora {}), but {} in this run; set peft.r, "
        "peft.alpha and peft.use_rslora to the adapter's values",
        (info.folder / kAdapterConfigFile).string(),
        name,
        there,
        info.lora.r,
        info.lora.alpha,
        info.lora.use_rslora,
        lora->settings().scaling());
  }
}

}  // namespace lehr::peft
