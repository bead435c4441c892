// What the parameters that train are called in Hugging Face PEFT's adapter_model.safetensors.
//
// The tensors are named after the modules of the base model, "base_model.model.<module>.lora_A.weight" and "lora_B";
// a fully tuned tensor stands there under its own name behind "base_model.model.".
#pragma once

#include <set>
#include <string>
#include <vector>

#include "lehr/base/torch.h"
#include "lehr/nn/module.h"
#include "lehr/peft/stored_names.h"

namespace lehr::peft {

/// The stem of the weights' file: "adapter_model.safetensors".
inline constexpr const char* kAdapterStem = "adapter_model";
/// The whole model's config.json under another name: beside one called config.json transformers would look for weights.
inline constexpr const char* kModelConfigFile = "model_config.json";
/// What stands before the base model's names.
inline constexpr const char* kAdapterPrefix = "base_model.model.";

/// "model.norm.weight" -> "model.norm".
std::string module_of(const std::string& tensor);

/// The paths on disk of a linear layer, by its full name: one, or one an expert. Throws a usage error for a layer
/// without a place on disk.
std::vector<std::string> stored_modules(const std::string& name, const std::vector<StoredName>& base_names);

/// The base model's tensors on disk that hold a trainable parameter, in whole or in part.
std::set<std::string> tuned_tensors(const torch::nn::Module& model, const std::vector<StoredName>& base_names);

/// Where the parameters of the base tensors `tuned` are in adapter_model.safetensors. A table whose rows are several
/// parameters is there as a whole; the head of a tied model is there beside its embeddings, as PEFT needs it.
std::vector<StoredName> tuned_stored_names(
    const torch::nn::Module& model, const std::vector<StoredName>& base_names, const std::set<std::string>& tuned);

/// Where all adapters of `model`, and the parameters of the base tensors `tuned`, are in adapter_model.safetensors.
/// `base_names` are the model's names without adapters (stored_names of ModelArgs::state_map). Throws a
/// usage error for the adapter of a layer that is stored in one tensor with others: PEFT would have one for all of
/// them.
std::vector<StoredName> adapter_stored_names(
    const torch::nn::Module& model, const std::vector<StoredName>& base_names, const std::set<std::string>& tuned);

}  // namespace lehr::peft
