#include "lehr/nn/float8.h"

#include <algorithm>
#include <set>

#include "lehr/nn/experts.h"
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

// Decides by the global shape, even if this rank holds a shard. The last two dimensions are those of a matrix.
bool fits(const ParameterPtr& weight) {
  const auto& shape = weight->shape();
  return std::all_of(shape.end() - 2, shape.end(), [](int64_t size) { return size % ops::kFloat8Multiple == 0; });
}

template <class Layer>
int64_t count(const torch::nn::Module& model) {
  int64_t found = 0;
  for (const auto& [name, module] : named_modules(model)) {
    const auto* layer = dynamic_cast<const Layer*>(module);
    found += layer != nullptr && layer->float8() ? 1 : 0;
  }
  return found;
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
      const ParameterPtr& weight = linear->tied() ? linear->tied() : linear->own_parameter("weight");
      (kept.contains(module) ? layers.kept : fits(weight) ? layers.fit : layers.other_sizes).push_back(name);
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
  return count<LinearImpl>(model);
}

Float8Layers float8_experts(const torch::nn::Module& model) {
  Float8Layers layers;
  for (const auto& [name, module] : named_modules(model)) {
    if (const auto* experts = dynamic_cast<const GroupedLinearImpl*>(module)) {
      (fits(experts->own_parameter("weight")) ? layers.fit : layers.other_sizes).push_back(name);
    }
  }
  return layers;
}

int64_t use_float8_experts(
    torch::nn::Module& model, ops::Float8Recipe recipe, const std::function<bool(const std::string& name)>& includes) {
  int64_t count = 0;
  for (const auto& [name, module] : named_modules(model)) {
    auto* experts = dynamic_cast<GroupedLinearImpl*>(module);
    if (experts != nullptr && fits(experts->own_parameter("weight")) && includes(name)) {
      experts->set_float8(recipe);
      ++count;
    }
  }
  return count;
}

int64_t count_float8_experts(const torch::nn::Module& model) {
  return count<GroupedLinearImpl>(model);
}

}  // namespace lehr::nn
