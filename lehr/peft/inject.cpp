#include "lehr/peft/inject.h"

#include <fmt/ranges.h>

#include <map>
#include <set>

#include "lehr/base/error.h"
#include "lehr/nn/head.h"
#include "lehr/peft/module_names.h"

namespace lehr::peft {

namespace {
using NamedModules = std::vector<std::pair<std::string, torch::nn::Module*>>;

void collect(const torch::nn::Module& module, const std::string& prefix, NamedModules& found) {
  for (const auto& child : module.named_children()) {
    found.emplace_back(prefix + child.key(), child.value().get());
    collect(*child.value(), prefix + child.key() + ".", found);
  }
}

// Every module below `root` by its full name, in order.
NamedModules named_modules(const torch::nn::Module& root) {
  NamedModules modules;
  collect(root, "", modules);
  return modules;
}

// Layers that a language model's head reads by their weight.
std::set<const torch::nn::Module*> read_as_tables(const torch::nn::Module& root) {
  std::set<const torch::nn::Module*> layers;
  for (const auto& [name, module] : named_modules(root)) {
    if (const auto* head = dynamic_cast<nn::SplitLanguageModellingHeadImpl*>(module)) {
      for (const auto& segment : head->segments) {
        layers.insert(segment.get());
      }
    }
  }
  return layers;
}

// Which method took a module.
using Claims = std::map<std::string, std::string>;

class Injector {
 public:
  explicit Injector(torch::nn::Module& model) : model_(model), modules_(named_modules(model)) {}

  void inject(const Method& method) {
    std::visit([this](const auto& kind) { inject(kind); }, method.kind);
  }

 private:
  void inject(const Lora& lora) {
    std::vector<std::string> linears;
    for (const auto& [name, module] : modules_) {
      if (dynamic_cast<nn::LinearImpl*>(module) != nullptr) {
        linears.push_back(name);
      }
    }
    std::vector<std::pair<std::string, Lora>> layers;
    for (const auto& name : matching(lora.module_name_pattern, linears, "peft.target_pattern", "linear layer")) {
      claim(name, "lora");
      layers.emplace_back(name, lora);
    }
    add_lora(model_, layers);
    for (const auto& adapted : adapted_linears(model_)) {
      for (const auto& parameter : adapted.lora->own_parameters()) {
        parameter->set_trainable(true);
      }
    }
  }

  void inject(const FullTune& tune) {
    std::vector<std::string> with_parameters;
    for (const auto& [name, module] : modules_) {
      if (!nn::named_parameters(*module).empty()) {
        with_parameters.push_back(name);
      }
    }
    const auto names =
        matching(tune.module_name_pattern, with_parameters, "peft.full_tune_pattern", "module with parameters");
    const std::set<std::string> chosen(names.begin(), names.end());
    for (const auto& [name, module] : modules_) {
      if (chosen.contains(name)) {
        tune_one(name, *module);
        for (const auto& [path, part] : named_modules(*module)) {
          tune_one(name + "." + path, *part);
        }
      }
    }
  }

  void inject(const Stack& stack) {
    for (const Method& method : stack.methods) {
      inject(method);
    }
  }

  void tune_one(const std::string& name, torch::nn::Module& module) {
    const auto* own = dynamic_cast<const nn::Module*>(&module);
    if (own == nullptr || own->own_parameters().empty() || dynamic_cast<nn::LinearAdapter*>(&module) != nullptr) {
      return;
    }
    claim(name, "full_tune");
    for (const auto& parameter : own->own_parameters()) {
      parameter->set_trainable(true);
    }
  }

  void claim(const std::string& name, const std::string& method) {
    const auto [taken, is_new] = claims_.emplace(name, method);
    require(
        is_new || (taken->second == "full_tune" && method == "full_tune"),
        "peft.target_pattern: {} falls to {} and to {}; change a pattern so that it falls to one",
        name,
        taken->second,
        method);
  }

  torch::nn::Module& model_;
  NamedModules modules_;  // without adapters
  Claims claims_;
};
}  // namespace

std::vector<AdaptedLinear> adapted_linears(const torch::nn::Module& model) {
  std::vector<AdaptedLinear> found;
  for (const auto& [name, module] : named_modules(model)) {
    if (auto* linear = dynamic_cast<nn::LinearImpl*>(module)) {
      if (auto* lora = dynamic_cast<LoraLinear*>(linear->adapter().get())) {
        found.push_back({name, linear, lora});
      }
    }
  }
  return found;
}

void add_lora(torch::nn::Module& model, const std::vector<std::pair<std::string, Lora>>& layers) {
  const auto tables = read_as_tables(model);
  const auto modules = named_modules(model);
  const std::map<std::string, torch::nn::Module*> by_name(modules.begin(), modules.end());
  for (const auto& [name, settings] : layers) {
    const auto found = by_name.find(name);
    auto* linear = found == by_name.end() ? nullptr : dynamic_cast<nn::LinearImpl*>(found->second);
    require(linear != nullptr, "peft.target_pattern: the model has no linear layer {}", name);
    require(
        !tables.contains(linear),
        "peft.target_pattern: {}: the loss reads this weight as a table, so it cannot have an adapter; leave it out "
        "(\"model\\\\..*\" is all but the head), or name it in peft.full_tune_pattern",
        name);
    const at::Tensor& weight = linear->weight;
    linear->set_adapter(kAdapterName, std::make_shared<LoraLinear>(name, weight.size(1), weight.size(0), settings));
    linear->adapter()->train(linear->is_training());
  }
}

std::vector<nn::NamedParameter> inject_peft_and_freeze(
    const Method& method, torch::nn::Module& model, const nn::InitContext& context) {
  require(
      adapted_linears(model).empty(),
      "peft.method: the model has adapters already; merge them first, or stack the methods");
  for (const auto& [name, parameter] : nn::named_parameters(model)) {
    parameter->set_trainable(false);
  }
  Injector(model).inject(method);
  for (const auto& [name, linear, lora] : adapted_linears(model)) {
    const at::Tensor& base = linear->weight;
    if (!base.is_meta()) {
      nn::materialize(*lora, base.device(), base.scalar_type());
      const std::string prefix = std::string(context.prefix) + name + "." + kAdapterName + ".";
      lora->reset_parameters({.seed = context.seed, .prefix = prefix});
    }
  }
  std::vector<nn::NamedParameter> trainable = nn::named_parameters(model);
  std::erase_if(trainable, [](const auto& entry) { return !entry.parameter->trainable(); });
  require(!trainable.empty(), "peft.method: no parameter is left to train; a stack needs at least one method");
  return trainable;
}

void reset_adapters(torch::nn::Module& model, const nn::InitContext& context) {
  for (const auto& [name, linear, lora] : adapted_linears(model)) {
    const std::string prefix = std::string(context.prefix) + name + "." + kAdapterName + ".";
    lora->reset_parameters({.seed = context.seed, .prefix = prefix});
  }
}

void materialize_frozen(torch::nn::Module& model, at::Device device, at::ScalarType dtype) {
  for (const auto& [name, parameter] : nn::named_parameters(model)) {
    if (!parameter->trainable() && parameter->value().is_meta()) {
      parameter->set_value(at::empty(parameter->shape(), at::TensorOptions().device(device).dtype(dtype)));
    }
  }
}

int64_t merge_peft(torch::nn::Module& model) {
  at::NoGradGuard no_grad;
  const auto adapted = adapted_linears(model);
  for (const auto& [name, linear, lora] : adapted) {
    at::Tensor weight = linear->own_parameter("weight")->value().detach();
    const at::Tensor delta = lora->delta_weight();
    weight.copy_(weight.to(delta.scalar_type()) + delta);
    linear->remove_adapter();
  }
  return static_cast<int64_t>(adapted.size());
}

TrainableCounts count_trainable(const torch::nn::Module& model) {
  TrainableCounts counts;
  for (const auto& [name, parameter] : nn::named_parameters(model)) {
    counts.total += parameter->numel();
    counts.trainable += parameter->trainable() ? parameter->numel() : 0;
  }
  for (const auto& [name, linear, lora] : adapted_linears(model)) {
    counts.adapters += nn::count_parameters(*lora);
  }
  for (const auto& [name, module] : named_modules(model)) {
    const auto* linear = dynamic_cast<nn::LinearImpl*>(module);
    if (linear != nullptr && !linear->weight.requires_grad()) {
      counts.frozen_linear += linear->weight.numel();
    }
  }
  return counts;
}

}  // namespace lehr::peft
