#include "lehr/train/float8.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <functional>

#include "lehr/base/error.h"
#include "lehr/base/name_pattern.h"
#include "lehr/nn/float8.h"
#include "lehr/peft/module_names.h"

namespace lehr::train {

using ops::Float8Recipe;

void Float8Config::fields(FieldVisitor& v) {
  v.optional(
      "enable",
      enable,
      "Compute the matmuls of linear layers in float8 (e4m3) with rowwise scales. Weights, gradients and checkpoints "
      "keep their dtypes; heads and routers do not use float8, experts only by moe_fqns.");
  v.choice(
      "recipe",
      recipe,
      {{"rowwise", Float8Recipe::rowwise}, {"rowwise_with_gw_hp", Float8Recipe::rowwise_with_gw_hp}},
      "rowwise: all three matmuls of a layer in float8. rowwise_with_gw_hp: wgrad in high precision.");
  v.optional(
      "exclude",
      exclude,
      "Regular expressions for whole names of linear layers that do not use float8, such as \".*\\\\.down_proj\".");
  v.optional(
      "moe_fqns",
      moe_fqns,
      "Regular expressions for whole names of projections of experts that use float8, too, such as "
      "\".*\\\\.grouped_experts\\\\..*\" for all; empty: none.");
}

void Float8Config::check(Problems& problems) const {
  const auto check_patterns = [&](const char* key, const std::vector<std::string>& patterns) {
    for (size_t i = 0; i < patterns.size(); ++i) {
      if (const std::string problem = NamePattern::problem(patterns[i]); !problem.empty()) {
        problems.add(fmt::format("float8.{}.{}", key, i), problem);
      }
    }
  };
  check_patterns("exclude", exclude);
  check_patterns("moe_fqns", moe_fqns);
  if (!enable && !moe_fqns.empty()) {
    problems.add("float8.moe_fqns", "has no effect without float8.enable = true; set it, or leave the key out");
  }
}

namespace {
// Returns whether one of the patterns matches a whole name.
std::function<bool(const std::string& name)> matcher(const std::vector<std::string>& patterns) {
  return [compiled = std::vector<NamePattern>(patterns.begin(), patterns.end())](const std::string& name) {
    return std::any_of(compiled.begin(), compiled.end(), [&](const auto& pattern) { return pattern.matches(name); });
  };
}

// Returns "; 2 do not use float8, with sizes that are not multiples of 16: a, b"; empty if there are none.
std::string other_sizes(const std::vector<std::string>& names) {
  constexpr size_t kShown = 3;
  const size_t shown = std::min(kShown, names.size());
  return names.empty() ? ""
                       : fmt::format(
                             "; {} do not use float8, with sizes that are not multiples of {}: {}{}",
                             names.size(),
                             ops::kFloat8Multiple,
                             fmt::join(names.begin(), names.begin() + static_cast<int64_t>(shown), ", "),
                             shown < names.size() ? ", ..." : "");
}
}  // namespace

void use_float8(const Float8Config& config, nn::Model& model) {
  if (!config.enable) {
    return;
  }
  nn::use_float8(model, config.recipe, matcher(config.exclude));
  nn::use_float8_experts(model, config.recipe, matcher(config.moe_fqns));
}

void check_float8(const Float8Config& config, const std::vector<std::shared_ptr<nn::Model>>& stages) {
  if (!config.enable) {
    return;
  }
  std::vector<std::string> names, of_experts;
  int64_t other_sizes = 0, used = 0, used_experts = 0;
  for (const auto& stage : stages) {
    const nn::Float8Layers layers = nn::float8_layers(*stage), experts = nn::float8_experts(*stage);
    for (const auto* list : {&layers.fit, &layers.other_sizes, &layers.kept}) {
      names.insert(names.end(), list->begin(), list->end());
    }
    for (const auto* list : {&experts.fit, &experts.other_sizes}) {
      of_experts.insert(of_experts.end(), list->begin(), list->end());
    }
    other_sizes += static_cast<int64_t>(layers.other_sizes.size());
    used += nn::count_float8(*stage);
    used_experts += nn::count_float8_experts(*stage);
  }
  for (const std::string& pattern : config.exclude) {
    peft::matching(pattern, names, "float8.exclude", "linear layer");
  }
  require(
      config.moe_fqns.empty() || !of_experts.empty(),
      "float8.moe_fqns: expected a model with experts, found one without; leave the key out");
  for (const std::string& pattern : config.moe_fqns) {
    peft::matching(pattern, of_experts, "float8.moe_fqns", "projection of experts");
  }
  require(
      config.moe_fqns.empty() || used_experts > 0,
      "float8.moe_fqns: none of the projections of experts that it names would compute in float8: their sizes are not "
      "multiples of {} (model.args.hidden_size, moe_intermediate_size); leave the key out",
      ops::kFloat8Multiple);
  require(
      used + used_experts > 0,
      "float8.enable: none of the model's {} linear layers would compute in float8: {} have sizes that are not "
      "multiples of {}, the others are heads, routers or in float8.exclude; remove the section",
      names.size(),
      other_sizes,
      ops::kFloat8Multiple);
}

std::string describe_float8(const Float8Config& config, const nn::Model& model, at::Device device) {
  const nn::Float8Layers layers = nn::float8_layers(model), experts = nn::float8_experts(model);
  const std::string recipe = config.recipe == Float8Recipe::rowwise ? "rowwise" : "rowwise_with_gw_hp";
  std::string text = fmt::format("{} of {} linear layers", nn::count_float8(model), layers.size());
  if (!config.moe_fqns.empty()) {
    text += fmt::format(" and {} of {} projections of experts", nn::count_float8_experts(model), experts.size());
  }
  text += ", " + recipe + other_sizes(layers.other_sizes);
  if (!config.moe_fqns.empty()) {
    text += other_sizes(experts.other_sizes);
  }
  return text + (device.is_cpu() ? "; emulated on the CPU, without a speed-up" : "");
}

}  // namespace lehr::train
