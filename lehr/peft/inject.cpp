#include "lehr/peft/inject.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>

#include "lehr/base/error.h"
#include "lehr/nn/head.h"
#include "lehr/nn/moe.h"
#include "lehr/nn/named_modules.h"
#include "lehr/peft/module_names.h"

namespace lehr::peft {

namespace {
using nn::named_modules;
using nn::NamedModules;

// Layers whose weights a language model's head reads directly.
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

// The method that selected each module.
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
      if (dynamic_cast<nn::LinearImpl*>(module) != nullptr || dynamic_cast<nn::GroupedLinearImpl*>(module) != nullptr) {
        linears.push_back(name);
      }
    }
    std::vector<std::pair<std::string, Lora>> layers;
    for (const auto& name : matching(lora.module_name_pattern, linears, "peft.target_pattern", "linear layer")) {
      claim(name, "lora");
      require(
          lora.dropout == 0 || !is_in_moe_layer(name),
          "peft.dropout: {} is inside an MoE layer, whose inputs are sorted by expert, so masks would depend on the "
          "micro-batch size; set it to 0, or leave such layers out of peft.target_pattern",
          name);
      layers.emplace_back(name, lora);
    }
    add_lora(model_, layers);
  }

  bool is_in_moe_layer(const std::string& name) const {
    return std::any_of(modules_.begin(), modules_.end(), [&](const auto& entry) {
      return dynamic_cast<nn::MoELayerImpl*>(entry.second) != nullptr && name.starts_with(entry.first + ".");
    });
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
    if (own == nullptr || own->own_parameters().empty() || dynamic_cast<const LoraAdapter*>(own) != nullptr) {
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
        "peft.target_pattern: {} is selected by {} and by {}; change a pattern so that only one selects it",
        name,
        taken->second,
        method);
  }

  torch::nn::Module& model_;
  NamedModules modules_;  // without adapters
  Claims claims_;
};
}  // namespace

std::vector<AdaptedLayer> adapted_layers(const torch::nn::Module& model) {
  std::vector<AdaptedLayer> found;
  const auto add = [&](const std::string& name, nn::Module& layer, nn::Module* adapter) {
    if (auto* lora = dynamic_cast<LoraAdapter*>(adapter)) {
      found.push_back({name, &layer, adapter, lora});
    }
  };
  for (const auto& [name, module] : named_modules(model)) {
    if (auto* linear = dynamic_cast<nn::LinearImpl*>(module)) {
      add(name, *linear, linear->adapter().get());
    } else if (auto* grouped = dynamic_cast<nn::GroupedLinearImpl*>(module)) {
      add(name, *grouped, grouped->adapter().get());
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
    torch::nn::Module* module = found == by_name.end() ? nullptr : found->second;
    const bool is_tied = module != nullptr && nn::named_parameters(*module).empty();
    require(
        !tables.contains(module),
        "peft.target_pattern: {}: the loss reads this weight directly, so it cannot have an adapter; leave it out "
        "(\"model\\\\..*\" matches everything except the head), or name {} in peft.full_tune_pattern",
        name,
        is_tied ? "the embedding, to which the head is tied," : "it");
    if (auto* linear = dynamic_cast<nn::LinearImpl*>(module)) {
      const at::Tensor& w = linear->weight;  // (out, in)
      linear->set_adapter(kAdapterName, std::make_shared<LoraLinear>(name, w.size(1), w.size(0), settings));
      linear->adapter()->train(linear->is_training());
    } else if (auto* grouped = dynamic_cast<nn::GroupedLinearImpl*>(module)) {
      const at::Tensor& w = grouped->weight;  // (groups, out, in)
      grouped->set_adapter(
          kAdapterName, std::make_shared<LoraGroupedLinear>(name, w.size(0), w.size(2), w.size(1), settings));
    } else {
      fail("peft.target_pattern: the model has no linear layer {}", name);
    }
  }
}

namespace {
void reset(const AdaptedLayer& adapted, const nn::InitContext& context) {
  const std::string prefix = std::string(context.prefix) + adapted.name + "." + kAdapterName + ".";
  adapted.adapter->reset_parameters({.seed = context.seed, .prefix = prefix});
}
}  // namespace

std::vector<nn::NamedParameter> inject_peft_and_freeze(
    const Method& method, torch::nn::Module& model, const nn::InitContext& context) {
  require(
      adapted_layers(model).empty(),
      "peft.method: the model already has adapters; merge them first, or stack the methods");
  for (const auto& [name, parameter] : nn::named_parameters(model)) {
    parameter->set_trainable(false);
  }
  Injector(model).inject(method);
  for (const auto& adapted : adapted_layers(model)) {
    const at::Tensor& base = adapted.layer->own_parameter("weight")->value();
    if (!base.is_meta()) {
      nn::materialize(*adapted.adapter, base.device(), base.scalar_type());
      reset(adapted, context);
    }
  }
  std::vector<nn::NamedParameter> trainable = nn::named_parameters(model);
  std::erase_if(trainable, [](const auto& entry) { return !entry.parameter->trainable(); });
  require(!trainable.empty(), "peft.method: no parameter is trainable; a stack needs at least one method");
  return trainable;
}

void inject_as_in(const torch::nn::Module& whole, torch::nn::Module& stage) {
  std::set<std::string> here;
  for (const auto& [name, module] : named_modules(stage)) {
    here.insert(name);
  }
  std::vector<std::pair<std::string, Lora>> layers;
  for (const auto& adapted : adapted_layers(whole)) {
    if (here.contains(adapted.name)) {
      layers.emplace_back(adapted.name, adapted.lora->settings());
    }
  }
  add_lora(stage, layers);
  std::map<std::string, bool> trains;
  for (const auto& [name, parameter] : nn::named_parameters(whole)) {
    trains[name] = parameter->trainable();
  }
  for (const auto& [name, parameter] : nn::named_parameters(stage)) {
    parameter->set_trainable(trains.at(name));
  }
}

void reset_adapters(torch::nn::Module& model, const nn::InitContext& context) {
  for (const auto& adapted : adapted_layers(model)) {
    reset(adapted, context);
  }
}

void materialize_frozen(torch::nn::Module& model, at::Device device, at::ScalarType dtype) {
  for (const auto& list : {nn::named_parameters(model), nn::named_copies(model)}) {
    for (const auto& [name, parameter] : list) {
      if (!parameter->trainable() && !parameter->is_state() && parameter->value().is_meta()) {
        parameter->set_value(at::empty(
            shape_of(parameter->box()), at::TensorOptions().device(device).dtype(parameter->dtype_in(dtype))));
      }
    }
  }
}

int64_t merge_peft(torch::nn::Module& model) {
  at::NoGradGuard no_grad;
  const auto adapted = adapted_layers(model);
  for (const auto& [name, layer, adapter, lora] : adapted) {
    at::Tensor weight = layer->own_parameter("weight")->value().detach();
    const at::Tensor delta = lora->delta_weight();
    weight.copy_(weight.to(delta.scalar_type()) + delta);
    if (auto* linear = dynamic_cast<nn::LinearImpl*>(layer)) {
      linear->remove_adapter();
    } else {
      dynamic_cast<nn::GroupedLinearImpl&>(*layer).remove_adapter();
    }
  }
  return static_cast<int64_t>(adapted.size());
}

TrainableCounts count_trainable(const torch::nn::Module& model) {
  TrainableCounts counts;
  for (const auto& [name, parameter] : nn::named_parameters(model)) {
    counts.total += parameter->numel();
    counts.trainable += parameter->trainable() ? parameter->numel() : 0;
  }
  return counts;
}

}  // namespace lehr::peft
