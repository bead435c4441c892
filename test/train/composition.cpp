#include "test/train/composition.h"

#include <algorithm>

#include "lehr/base/error.h"
#include "lehr/base/file.h"
#include "lehr/config/json.h"

namespace lehr::train::testing {

namespace {
std::vector<std::string> words_of(const Node& entry, const char* key) {
  std::vector<std::string> words;
  if (const Node* const list = entry.find(key)) {
    for (const Node& word : list->items()) {
      words.push_back(word.as_string());
    }
  }
  return words;
}

// Splits "a|b" into a list of "a" and "b".
std::vector<std::string> alternatives(const std::string& text) {
  std::vector<std::string> names;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find('|', begin), text.size());
    names.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return names;
}
}  // namespace

Composition::Composition(const std::string& json, const std::string& name) {
  const Node rules = parse_json(json, name);
  for (const Node& entry : rules.at("features").items()) {
    const Node* const group = entry.find("one_of");
    features_.push_back(
        {.name = entry.at("name").as_string(),
         .one_of = group == nullptr ? "" : group->as_string(),
         .needs = words_of(entry, "needs"),
         .never_with = words_of(entry, "never_with")});
  }
  for (const Node& entry : rules.at("reasons").items()) {
    Reason reason{.message = entry.at("message").as_string(), .always = entry.find("always") != nullptr};
    for (const std::string& text : words_of(entry, "features")) {
      reason.features.push_back(alternatives(text));
      std::for_each(reason.features.back().begin(), reason.features.back().end(), [&](const auto& one) { find(one); });
    }
    reasons_.push_back(std::move(reason));
  }
}

const Composition& Composition::rules() {
  static const std::string file = LEHR_SOURCE_DIR "/test/train/composition.json";
  static const Composition kRules(read_file(file), file);
  return kRules;
}

const Feature& Composition::find(const std::string& name) const {
  const auto found =
      std::find_if(features_.begin(), features_.end(), [&](const auto& one) { return one.name == name; });
  require(found != features_.end(), "composition: expected one of the listed features, found {}", name);
  return *found;
}

FeatureSet Composition::with_needs(const FeatureSet& features) const {
  FeatureSet all;
  for (const std::string& name : features) {
    const auto& needs = find(name).needs;
    all.merge(with_needs({needs.begin(), needs.end()}));
    all.insert(name);
  }
  return all;
}

bool Composition::can_meet(const FeatureSet& features) const {
  const FeatureSet all = with_needs(features);
  FeatureSet groups;
  return std::all_of(all.begin(), all.end(), [&](const std::string& name) {
    const Feature& feature = find(name);
    const auto& never = feature.never_with;
    return (feature.one_of.empty() || groups.insert(feature.one_of).second) &&
           std::none_of(never.begin(), never.end(), [&](const std::string& other) { return all.contains(other); });
  });
}

bool has_features_of(const FeatureSet& features, const Reason& reason) {
  return std::all_of(reason.features.begin(), reason.features.end(), [&](const auto& list) {
    return std::any_of(list.begin(), list.end(), [&](const std::string& name) { return features.contains(name); });
  });
}

const Reason* Composition::refuses(const FeatureSet& features) const {
  const FeatureSet all = with_needs(features);
  const auto found = std::find_if(reasons_.begin(), reasons_.end(), [&](const Reason& reason) {
    return reason.always && has_features_of(all, reason);
  });
  return found == reasons_.end() ? nullptr : &*found;
}

const Reason* Composition::reason_of(std::string_view error) const {
  const auto found = std::find_if(reasons_.begin(), reasons_.end(), [&](const Reason& reason) {
    return error.find(reason.message) != std::string_view::npos;
  });
  return found == reasons_.end() ? nullptr : &*found;
}

}  // namespace lehr::train::testing
