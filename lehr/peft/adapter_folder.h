// Adapter folders in the layout of Hugging Face's PEFT: adapter_config.json and adapter_model.safetensors.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "lehr/base/node.h"
#include "lehr/descriptor/model_args.h"
#include "lehr/peft/adapter_names.h"
#include "lehr/peft/method.h"

namespace lehr::peft {

/// True if a folder holds an adapter instead of a model.
bool is_adapter_folder(const std::filesystem::path& folder);

/// Returns the content of adapter_config.json. Throws a usage error for settings that PEFT's file cannot express:
/// layers that differ in dropout or in use_rslora.
Node adapter_config(
    const torch::nn::Module& model,
    const std::vector<StoredName>& base_names,
    descriptor::Head head,
    const std::string& base_model);

/// The settings in a folder's adapter_config.json.
struct AdapterInfo {
  std::filesystem::path folder;
  std::string base_model;  ///< base_model_name_or_path; a relative path is not resolved.
  Lora lora;               ///< The defaults for all layers.
  /// Other alphas, by a regular expression over modules; the first match applies.
  std::vector<std::pair<std::string, double>> alpha_pattern = {};
  std::vector<std::pair<std::string, int64_t>> rank_pattern = {};
};

/// Reads adapter_config.json. Throws a usage error that names the file and the field for other kinds of adapters, and
/// for unsupported variants of LoRA (DoRA, biases, ...).
AdapterInfo read_adapter_config(const std::filesystem::path& folder);

/// Adds the folder's adapters to `model`, without loading their weights and without freezing anything. The adapted
/// linear layers are those for which the file has tensors. Returns the names to load from it, as adapter_stored_names
/// does.
std::vector<StoredName> add_adapters_of(
    const AdapterInfo& info, torch::nn::Module& model, const std::vector<StoredName>& base_names);

/// Throws a usage error if the folder's adapters have another scaling than those in `model`, because their weights
/// would have another meaning.
void require_same_scaling(
    const AdapterInfo& info, const torch::nn::Module& model, const std::vector<StoredName>& base_names);

}  // namespace lehr::peft
