// Adapters on disk, in the layout of Hugging Face's PEFT: adapter_config.json and adapter_model.safetensors.
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

/// Whether a folder holds an adapter instead of a model.
bool is_adapter_folder(const std::filesystem::path& folder);

/// The content of adapter_config.json. Throws a usage error for what PEFT's file cannot say: layers that differ in
/// dropout or in use_rslora.
Node adapter_config(
    const torch::nn::Module& model,
    const std::vector<StoredName>& base_names,
    descriptor::Head head,
    const std::string& base_model);

/// What adapter_config.json says of a folder.
struct AdapterInfo {
  std::filesystem::path folder;
  std::string base_model;  ///< base_model_name_or_path; relative paths are as they stand there.
  Lora lora;               ///< The defaults of all layers.
  /// Other alphas, by a regular expression over modules; of several that match the first counts.
  std::vector<std::pair<std::string, double>> alpha_pattern = {};
  std::vector<std::pair<std::string, int64_t>> rank_pattern = {};
};

/// Reads adapter_config.json. Throws usage errors that name the file and the field for another kind of adapter, and for
/// variants of LoRA that are not here (DoRA, biases, ...).
AdapterInfo read_adapter_config(const std::filesystem::path& folder);

/// Puts the folder's adapters into `model`, without reading the weights and without freezing anything: linear layers
/// are those that the file has tensors for. Returns the names to load from it, as adapter_stored_names does.
std::vector<StoredName> add_adapters_of(
    const AdapterInfo& info, torch::nn::Module& model, const std::vector<StoredName>& base_names);

/// Throws a usage error if the folder's adapters are scaled otherwise than those in `model`: their weights would mean
/// something else.
void require_same_scaling(
    const AdapterInfo& info, const torch::nn::Module& model, const std::vector<StoredName>& base_names);

}  // namespace lehr::peft
