#include "lehr/peft/adapter_names.h"

#include <map>

#include "lehr/base/error.h"
#include "lehr/nn/head.h"
#include "lehr/peft/inject.h"

namespace lehr::peft {

std::string module_of(const std::string& tensor) {
  return tensor.substr(0, tensor.rfind('.'));
}

std::vector<std::string> stored_modules(const std::string& name, const std::vector<StoredName>& base_names) {
  std::vector<std::string> modules;
  for (const StoredName& entry : base_names) {
    if (entry.parameter == name + ".weight") {
      modules.push_back(module_of(entry.stored));
    }
  }
  require(!modules.empty(), "{}: its weight has no stored tensor, so its adapter cannot be stored", name);
  return modules;
}

namespace {
std::set<std::string> trainable_names(const torch::nn::Module& model) {
  std::set<std::string> names;
  for (const auto& [name, parameter] : nn::named_parameters(model)) {
    if (parameter->trainable()) {
      names.insert(name);
    }
  }
  return names;
}
}  // namespace

std::set<std::string> tuned_tensors(const torch::nn::Module& model, const std::vector<StoredName>& base_names) {
  const auto trained = trainable_names(model);
  std::set<std::string> tuned;
  for (const StoredName& entry : base_names) {
    if (trained.contains(entry.parameter)) {
      tuned.insert(entry.stored);
    }
  }
  return tuned;
}

namespace {
void find_tied_head(
    const torch::nn::Module& module, const std::string& name, std::string& found, const nn::Parameter*& table) {
  if (const auto* head = dynamic_cast<const nn::SplitLanguageModellingHeadImpl*>(&module)) {
    if (const auto& tied = head->segments.front()->tied()) {
      found = name;
      table = tied.get();
    }
  }
  for (const auto& child : module.named_children()) {
    find_tied_head(*child.value(), name.empty() ? child.key() : name + "." + child.key(), found, table);
  }
}
}  // namespace

std::vector<StoredName> tied_head_names(const torch::nn::Module& model, const std::vector<StoredName>& base_names) {
  std::string head;
  const nn::Parameter* table = nullptr;
  find_tied_head(model, "", head, table);
  std::string embeddings;  // stored name
  for (const auto& [name, parameter] : nn::named_parameters(model)) {
    for (const StoredName& entry : base_names) {
      if (parameter.get() == table && entry.parameter == name) {
        embeddings = entry.stored;
      }
    }
  }
  std::vector<StoredName> copies;
  for (const StoredName& entry : base_names) {
    if (!embeddings.empty() && entry.stored == embeddings) {
      copies.push_back(entry);
      copies.back().stored = head + ".weight";
    }
  }
  return copies;
}

namespace {
void require_storable(const StoredName& entry, const char* pattern) {
  require(
      entry.operation.empty(),
      "{}: is loaded from {} with the operation '{}', which adapter folders do not support; leave it out by {}",
      entry.parameter,
      entry.stored,
      entry.operation,
      pattern);
}
}  // namespace

std::vector<StoredName> tuned_stored_names(
    const torch::nn::Module& model, const std::vector<StoredName>& base_names, const std::set<std::string>& tuned) {
  std::vector<StoredName> names;
  for (const StoredName& entry : base_names) {
    if (tuned.contains(entry.stored)) {
      names.push_back(entry);
    }
  }
  const auto parameter_is_tuned = [&](const StoredName& entry) {
    for (const StoredName& other : names) {
      if (other.parameter == entry.parameter) {
        return true;
      }
    }
    return false;
  };
  for (const StoredName& entry : tied_head_names(model, base_names)) {
    if (parameter_is_tuned(entry)) {
      names.push_back(entry);
    }
  }
  for (StoredName& entry : names) {
    require_storable(entry, "peft.full_tune_pattern");
    entry.stored = kAdapterPrefix + entry.stored;
  }
  return names;
}

std::vector<StoredName> adapter_stored_names(
    const torch::nn::Module& model, const std::vector<StoredName>& base_names, const std::set<std::string>& tuned) {
  std::vector<StoredName> names;
  std::map<std::string, std::vector<const StoredName*>> stored_of;
  for (const StoredName& entry : base_names) {
    stored_of[entry.parameter].push_back(&entry);
  }
  for (const auto& adapted : adapted_layers(model)) {
    for (const StoredName* entry : stored_of[adapted.name + ".weight"]) {  // several for experts
      require(
          entry->rows == 0,
          "{}: is a part of the stored tensor {}, but PEFT's format has adapters for whole tensors only; leave the "
          "layer out by peft.target_pattern",
          adapted.name,
          entry->stored);
      require_storable(*entry, "peft.target_pattern");
      for (const char* which : {"A", "B"}) {
        names.push_back(
            {.stored = fmt::format("{}{}.lora_{}.weight", kAdapterPrefix, module_of(entry->stored), which),
             .parameter = fmt::format("{}.{}.{}", adapted.name, kAdapterName, which),
             .expert = entry->expert,
             .row_order = std::string_view(which) == "B" ? entry->row_order : std::vector<Range>()});
      }
    }
  }
  const auto more = tuned_stored_names(model, base_names, tuned);
  names.insert(names.end(), more.begin(), more.end());
  return names;
}

}  // namespace lehr::peft
