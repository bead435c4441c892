// Puts a method's adapters into a model, freezes the rest, and folds adapters back into the weights.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "lehr/nn/module.h"
#include "lehr/peft/lora.h"
#include "lehr/peft/method.h"

namespace lehr::peft {

/// A linear layer (or a grouped one) with its adapter, under its full name.
struct AdaptedLayer {
  std::string name;
  nn::Module* layer = nullptr;    ///< Has the parameter "weight".
  nn::Module* adapter = nullptr;  ///< The same object as `lora`; has the parameters "A" and "B".
  LoraAdapter* lora = nullptr;
};

/// All adapted layers under `model`, in the order of the modules.
std::vector<AdaptedLayer> adapted_layers(const torch::nn::Module& model);

/// Freezes all of `model`, puts in the method's adapters, and makes them and the fully tuned modules trainable; returns
/// the trainable parameters. Works on meta, before nn::materialize(), and after it: adapters of materialized layers are
/// materialized (in the layer's type) and filled at once, as `context` says.
///
/// Throws usage errors: for a pattern that is no regular expression, or that fits no module (the nearest names are
/// listed); for a layer that falls to two methods; for a layer whose weight a head reads without calling it
/// (a language model's head); for a model that has adapters already.
std::vector<nn::NamedParameter> inject_peft_and_freeze(
    const Method& method, torch::nn::Module& model, const nn::InitContext& context = {});

/// Puts the adapters of `whole` into `stage`, some of its modules under the same names, and lets train what trains
/// there. Both are on meta.
void inject_as_in(const torch::nn::Module& whole, torch::nn::Module& stage);

/// Puts an adapter on each of the named linear layers, without freezing anything. Errors as above.
void add_lora(torch::nn::Module& model, const std::vector<std::pair<std::string, Lora>>& layers);

/// Fills the (materialized) adapters alone with their initial values.
void reset_adapters(torch::nn::Module& model, const nn::InitContext& context);

/// Allocates the frozen parameters that are still on meta, copies of other stages' among them, in a type of their own:
/// nothing updates them, so they need no master copy.
void materialize_frozen(torch::nn::Module& model, at::Device device, at::ScalarType dtype);

/// Adds every adapter's update to its layer's weight, computed in float32 at least and rounded once, and removes the
/// adapter. Returns how many there were.
int64_t merge_peft(torch::nn::Module& model);

/// What trains and what does not.
struct TrainableCounts {
  int64_t total = 0;  ///< Parameters' elements; tied ones once.
  int64_t trainable = 0;
  /// What training a part changes in the FLOPs a token: 6 more for each element of an adapter that a token uses, 2 less
  /// for each frozen weight that it is multiplied by (tied heads too), as that has no gradient.
  int64_t flops_per_token_change = 0;
};
TrainableCounts count_trainable(const torch::nn::Module& model);

}  // namespace lehr::peft
