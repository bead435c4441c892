// Names of trainable parameters in Hugging Face PEFT's adapter_model.safetensors.
//
// The tensors are named after the modules of the base model, "base_model.model.<module>.lora_A.weight" and "lora_B". A
// fully tuned tensor has its own name after "base_model.model.".
#pragma once

#include <set>
#include <string>
#include <vector>

#include "lehr/base/torch.h"
#include "lehr/nn/module.h"
#include "lehr/peft/stored_names.h"

namespace lehr::peft {

/// The stem of the weights file: "adapter_model.safetensors".
inline constexpr const char* kAdapterStem = "adapter_model";
/// The whole model's config.json under another name: next to a file named config.json, transformers would look for
/// weights.
inline constexpr const char* kModelConfigFile = "model_config.json";
/// The prefix of the base model's names.
inline constexpr const char* kAdapterPrefix = "base_model.model.";

/// "model.norm.weight" -> "model.norm".
std::string module_of(const std::string& tensor);

/// Returns the stored paths of a linear layer, by its full name: one, or one per expert. Throws a usage error for a
/// layer without a stored tensor.
std::vector<std::string> stored_modules(const std::string& name, const std::vector<StoredName>& base_names);

/// Returns the base model's stored tensors that contain a trainable parameter, in whole or in part.
std::set<std::string> tuned_tensors(const torch::nn::Module& model, const std::vector<StoredName>& base_names);

/// Returns the stored names of a tied model's head, one per part of the table that it shares with the embeddings; none
/// if the model's head is its own.
std::vector<StoredName> tied_head_names(const torch::nn::Module& model, const std::vector<StoredName>& base_names);

/// Returns the names in adapter_model.safetensors of the parameters of the base tensors `tuned`. A table that is split
/// by rows into several parameters is stored as a whole; the head of a tied model is stored in addition to its
/// embeddings, as PEFT requires. Throws a usage error for a parameter that is loaded with another operation.
std::vector<StoredName> tuned_stored_names(
    const torch::nn::Module& model, const std::vector<StoredName>& base_names, const std::set<std::string>& tuned);

/// Returns the names in adapter_model.safetensors of all adapters of `model`, and of the parameters of the base tensors
/// `tuned`. `base_names` are the model's names without adapters (stored_names of ModelArgs::state_map). Throws a usage
/// error for the adapter of a layer that shares a stored tensor with others: PEFT would have one adapter for all of
/// them; and for a parameter that is loaded with another operation.
std::vector<StoredName> adapter_stored_names(
    const torch::nn::Module& model, const std::vector<StoredName>& base_names, const std::set<std::string>& tuned);

}  // namespace lehr::peft
