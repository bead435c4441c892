#include "lehr/train/weights.h"

#include <fmt/ranges.h>

#include <map>
#include <set>

#include "lehr/base/error.h"
#include "lehr/state/weights.h"

namespace lehr::train {

namespace {
// What checkpoints of the wild hold beside parameters: tables that can be computed, a language model's head where a
// classifier is loaded, and the head of a model with tied embeddings, which must be the embeddings then.
bool is_expected_surplus(
    const std::string& name, const std::set<std::string>& wanted, const state::WeightReader& reader) {
  if (name.ends_with("rotary_emb.inv_freq")) {
    return true;
  }
  if (name != "lm_head.weight") {
    return false;
  }
  const std::string embeddings = "model.embed_tokens.weight";
  if (wanted.contains("score.weight") || !reader.has(embeddings)) {
    return true;
  }
  require(
      at::equal(reader.tensor(name), reader.tensor(embeddings)),
      "{}: lm_head.weight: differs from {}, but the model ties the two; set tie_word_embeddings to false",
      reader.path().string(),
      embeddings);
  return true;
}

std::string list_some(const std::vector<std::string>& names) {
  constexpr size_t kShown = 8;
  const std::vector<std::string> shown(
      names.begin(), names.begin() + static_cast<long>(std::min(kShown, names.size())));
  return fmt::format(
      "{}{}", fmt::join(shown, ", "), names.size() > kShown ? fmt::format(" and {} more", names.size() - kShown) : "");
}
}  // namespace

std::vector<std::string> load_weights(
    nn::Module& model,
    const std::vector<descriptor::StoredName>& names,
    const state::WeightReader& reader,
    const std::set<std::string>& may_lack) {
  std::map<std::string, nn::ParameterPtr> parameters;
  for (auto& [name, parameter] : nn::named_parameters(model)) {
    parameters[name] = parameter;
  }
  std::set<std::string> unread;
  for (const auto& name : reader.names()) {
    unread.insert(name);
  }
  std::set<std::string> wanted;
  std::vector<std::string> missing;
  std::vector<std::string> lacked;
  std::vector<std::string> misshapen;
  for (const auto& entry : names) {
    wanted.insert(entry.stored);
    if (!reader.has(entry.stored)) {
      (may_lack.contains(entry.stored) ? lacked : missing).push_back(entry.stored);
      continue;
    }
    unread.erase(entry.stored);
    if (reader.info(entry.stored).shape != entry.shape) {
      misshapen.push_back(fmt::format(
          "{} (expected {}, found {})",
          entry.stored,
          fmt::join(entry.shape, "x"),
          fmt::join(reader.info(entry.stored).shape, "x")));
    }
  }
  require(missing.empty(), "{}: the checkpoint lacks {}", reader.path().string(), list_some(missing));
  require(
      misshapen.empty(),
      "{}: shapes differ from the model's: {}; is this the checkpoint of another model?",
      reader.path().string(),
      list_some(misshapen));
  std::erase_if(unread, [&](const std::string& name) { return is_expected_surplus(name, wanted, reader); });
  require(
      unread.empty(),
      "{}: the model has no place for {}",
      reader.path().string(),
      list_some({unread.begin(), unread.end()}));

  at::NoGradGuard no_grad;
  for (const auto& entry : names) {
    const auto found = parameters.find(entry.parameter);
    if (found == parameters.end() || !reader.has(entry.stored)) {
      continue;  // another stage's, or one that keeps its value
    }
    at::Tensor value = found->second->value();
    at::Tensor source = reader.tensor(entry.stored);
    if (entry.expert) {
      value = value.select(0, *entry.expert);
    } else if (source.sizes() != value.sizes()) {
      source = source.narrow(0, entry.first_row, value.size(0));
    }
    value.copy_(source);
  }
  return lacked;
}

std::vector<std::pair<std::string, at::Tensor>> stored_tensors_of(
    const std::vector<std::pair<std::string, at::Tensor>>& values, const std::vector<descriptor::StoredName>& names) {
  std::map<std::string, at::Tensor> by_name(values.begin(), values.end());
  std::vector<std::pair<std::string, at::Tensor>> tensors;
  std::map<std::string, at::Tensor> assembled;  // tables made of several parameters
  for (const auto& entry : names) {
    const auto found = by_name.find(entry.parameter);
    if (found == by_name.end()) {
      continue;
    }
    at::Tensor value = found->second.detach();
    if (entry.expert) {
      tensors.emplace_back(entry.stored, value.select(0, *entry.expert));
      continue;
    }
    if (value.sizes() == at::IntArrayRef(entry.shape)) {
      tensors.emplace_back(entry.stored, value);
      continue;
    }
    at::Tensor& whole = assembled[entry.stored];
    if (!whole.defined()) {
      whole = at::empty(entry.shape, value.options());
      tensors.emplace_back(entry.stored, whole);
    }
    whole.narrow(0, entry.first_row, value.size(0)).copy_(value);
  }
  return tensors;
}

std::vector<std::pair<std::string, at::Tensor>> stored_tensors(
    const nn::Module& model, const std::vector<descriptor::StoredName>& names) {
  std::vector<std::pair<std::string, at::Tensor>> values;
  for (const auto& [name, parameter] : nn::named_parameters(model)) {
    values.emplace_back(name, parameter->value());
  }
  return stored_tensors_of(values, names);
}

}  // namespace lehr::train
