#include "lehr/nn/float8.h"

#include <set>

#include "lehr/nn/head.h"
#include "lehr/nn/linear.h"
#include "lehr/nn/named_modules.h"
#include "lehr/nn/router.h"

namespace lehr::nn {

namespace {
bool keeps_its_layers(const torch::nn::Module& module) {
  return dynamic_cast<const SplitLanguageModellingHeadImpl*>(&module) != nullptr ||
         dynamic_cast<const ClassificationHeadImpl*>(&module) != nullptr ||
         dynamic_cast<const EmbeddingHeadImpl*>(&module) != nullptr ||
         dynamic_cast<const TopKRouterImpl*>(&module) != nullptr;
}

// Decides by the global shape, even if this rank holds a shard.
bool fits(const LinearImpl& layer) {
  const ParameterPtr& weight = layer.tied() ? layer.tied() : layer.own_parameter("weight");
  return weight->shape()[0] % ops::kFloat8Multiple == 0 && weight->shape()[1] % ops::kFloat8Multiple == 0;
}
}  // namespace

Float8Layers float8_layers(const torch::nn::Module& model) {
  const NamedModules modules = named_modules(model);
  std::set<const torch::nn::Module*> kept;
  for (const auto& [name, module] : modules) {
    if (keeps_its_layers(*module)) {
      for (const auto& [below, part] : named_modules(*module)) {
        kept.insert(part);
      }
    }
  }
  Float8Layers layers;
  for (const auto& [name, module] : modules) {
    if (const auto* linear = dynamic_cast<const LinearImpl*>(module)) {
      (kept.contains(module) ? layers.kept : fits(*linear) ? layers.fit : layers.other_sizes).push_back(name);
    }
  }
  return layers;
}

int64_t use_float8(
    torch::nn::Module& model, ops::Float8Recipe recipe, const std::function<bool(const std::string& name)>& excludes) {
  const Float8Layers layers = float8_layers(model);
  const std::set<std::string> fit(layers.fit.begin(), layers.fit.end());
  int64_t count = 0;
  for (const auto& [name, module] : named_modules(model)) {
    if (fit.contains(name) && !(excludes && excludes(name))) {
      dynamic_cast<LinearImpl&>(*module).set_float8(recipe);
      ++count;
    }
  }
  return count;
}

int64_t count_float8(const torch::nn::Module& model) {
  int64_t count = 0;
  for (const auto& [name, module] : named_modules(model)) {
    const auto* linear = dynamic_cast<const LinearImpl*>(module);
    count += linear != nullptr && linear->float8() ? 1 : 0;
  }
  return count;
}

}  // namespace lehr::nn
