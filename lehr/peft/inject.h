// Injection of a method's adapters into a model, freezing of the rest, and merging of adapters into the weights.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "lehr/nn/module.h"
#include "lehr/peft/lora.h"
#include "lehr/peft/method.h"

namespace lehr::peft {

/// A linear layer (or a grouped one) with its adapter, and its full name.
struct AdaptedLayer {
  std::string name;
  nn::Module* layer = nullptr;    ///< Has the parameter "weight".
  nn::Module* adapter = nullptr;  ///< The same object as `lora`; has the parameters "A" and "B".
  LoraAdapter* lora = nullptr;
};

/// Returns all adapted layers under `model`, in the order of the modules.
std::vector<AdaptedLayer> adapted_layers(const torch::nn::Module& model);

/// Freezes all of `model`, adds the method's adapters, and makes them and the fully tuned modules trainable. Returns
/// the trainable parameters. Works on meta, before nn::materialize(), and after it: adapters of materialized layers are
/// materialized (in the layer's dtype) and initialized immediately from `context`.
///
/// Throws a usage error for an invalid regular expression; a pattern that matches no module (with the nearest names); a
/// layer that two methods select, unless both are FullTune; a layer whose weight a head reads without calling it (a
/// language model's head); dropout in an MoE layer; an empty Stack; a model that already has adapters.
std::vector<nn::NamedParameter> inject_peft_and_freeze(
    const Method& method, torch::nn::Module& model, const nn::InitContext& context = {});

/// Adds the adapters of `whole` to `stage`, which has some of its modules under the same names, and makes the same
/// parameters trainable. Both are on meta.
void inject_as_in(const torch::nn::Module& whole, torch::nn::Module& stage);

/// Adds an adapter to each of the named linear layers, without freezing anything. Throws like inject_peft_and_freeze.
void add_lora(torch::nn::Module& model, const std::vector<std::pair<std::string, Lora>>& layers);

/// Initializes the adapters only; they must be materialized.
void reset_adapters(torch::nn::Module& model, const nn::InitContext& context);

/// Allocates the frozen parameters that are still on meta, including copies of other stages' parameters, in `dtype`:
/// they are never updated, so they need no master copy.
void materialize_frozen(torch::nn::Module& model, at::Device device, at::ScalarType dtype);

/// Adds every adapter's update to its layer's weight, computed in at least float32 and rounded once, and removes the
/// adapter. Returns the number of adapters.
int64_t merge_peft(torch::nn::Module& model);

/// Numbers of trainable and all parameters.
struct TrainableCounts {
  int64_t total = 0;  ///< Elements of all parameters; tied ones once.
  int64_t trainable = 0;
};
TrainableCounts count_trainable(const torch::nn::Module& model);

}  // namespace lehr::peft
