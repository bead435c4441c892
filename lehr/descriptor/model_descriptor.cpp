#include "lehr/descriptor/model_descriptor.h"

#include <algorithm>
#include <cctype>
#include <set>

#include "lehr/base/error.h"

namespace lehr::descriptor {

namespace {
bool is_digit(char c) {
  return std::isdigit(static_cast<unsigned char>(c)) != 0;
}

// Matches `name` against `pattern`, in which # stands for one or more digits.
bool matches(std::string_view name, std::string_view pattern) {
  size_t at = 0;
  for (const char wanted : pattern) {
    if (at == name.size()) {
      return false;
    }
    if (wanted != '#') {
      if (name[at++] != wanted) {
        return false;
      }
      continue;
    }
    const size_t begin = at;
    while (at < name.size() && is_digit(name[at])) {
      ++at;
    }
    if (at == begin) {
      return false;
    }
  }
  return at == name.size();
}
}  // namespace

bool LayerNamePredicate::operator()(std::string_view name) const {
  if (!name.starts_with(prefix)) {
    return false;
  }
  const std::string_view rest = name.substr(prefix.size());
  return std::any_of(endings.begin(), endings.end(), [&](const std::string& ending) { return matches(rest, ending); });
}

void ModelDescriptor::attn_no_op_post_init(torch::nn::Module&) const {
  fail("attn_no_op_post_init: layers of this family do not support attention no-ops");
}

void ModelDescriptor::mlp_no_op_post_init(torch::nn::Module&) const {
  fail("mlp_no_op_post_init: layers of this family do not support feed-forward no-ops");
}

void ModelDescriptor::init_rotary_embedding(nn::Model&) const {}

WeightGroups ModelDescriptor::get_weight_groups(
    const std::vector<std::string>& layer_names, int64_t num_hidden_layers) const {
  const auto predicates = layer_name_predicates(num_hidden_layers);
  WeightGroups groups;
  std::set<std::string_view> seen;
  for (const std::string& name : layer_names) {
    require(seen.insert(name).second, "weight {}: occurs twice", name);
    const auto found = std::find_if(
        predicates.begin(), predicates.end(), [&](const WeightGroupPredicate& one) { return one.belongs(name); });
    require(
        found != predicates.end(),
        "weight {}: belongs to no weight group of a model of this family with {} layers",
        name,
        num_hidden_layers);
    groups[found->group].push_back(name);
  }
  return groups;
}

}  // namespace lehr::descriptor
