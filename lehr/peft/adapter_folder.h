// Adapter folders in the layout of Hugging Face's PEFT: adapter_config.json and adapter_model.safetensors.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "lehr/config/node.h"
#include "lehr/descriptor/model_args.h"
#include "lehr/peft/adapter_config.h"
#include "lehr/peft/adapter_names.h"

namespace lehr::peft {

/// True if a folder holds an adapter instead of a model.
bool is_adapter_folder(const std::filesystem::path& folder);

/// Returns stored_names of `args`, with the names that the folder's adapters use: those of transformers' modules, also
/// of a multimodal model with this text model, or, as in adapters of a model whose code came with its checkpoint, those
/// of the checkpoint.
std::vector<StoredName> stored_names(const std::filesystem::path& adapter_folder, const descriptor::ModelArgs& args);

/// Returns the content of adapter_config.json. Throws a usage error for settings that PEFT's file cannot express:
/// layers that differ in dropout or in use_rslora.
Node adapter_config(
    const torch::nn::Module& model,
    const std::vector<StoredName>& base_names,
    descriptor::Head head,
    const std::string& base_model);

/// Adds the folder's adapters to `model`, without loading their weights and without freezing anything. The adapted
/// linear layers are those for which the file has tensors. Returns the names to load from it, as adapter_stored_names
/// does.
std::vector<StoredName> add_adapters_of(
    const AdapterInfo& info, torch::nn::Module& model, const std::vector<StoredName>& base_names);

/// Throws a usage error if the folder has other weights for the head of a tied model than for its embeddings, as PEFT
/// writes them where modules_to_save names both, or for one of the two only: the model has one table for both.
void require_one_table(
    const std::filesystem::path& adapter_folder,
    const torch::nn::Module& model,
    const std::vector<StoredName>& base_names);

/// Throws a usage error if the folder's adapters have another scaling than those in `model`, because their weights
/// would have another meaning.
void require_same_scaling(
    const AdapterInfo& info, const torch::nn::Module& model, const std::vector<StoredName>& base_names);

}  // namespace lehr::peft
