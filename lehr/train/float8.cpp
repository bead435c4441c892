#include "lehr/train/float8.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <regex>

#include "lehr/base/error.h"
#include "lehr/nn/float8.h"
#include "lehr/peft/module_names.h"

namespace lehr::train {

using ops::Float8Recipe;

void Float8Config::fields(FieldVisitor& v) {
  v.optional(
      "enable",
      enable,
      "Compute the matmuls of linear layers in float8 (e4m3) with rowwise scales. Weights, gradients and checkpoints "
      "keep their dtypes; heads, routers and experts do not use float8.");
  v.choice(
      "recipe",
      recipe,
      {{"rowwise", Float8Recipe::rowwise}, {"rowwise_with_gw_hp", Float8Recipe::rowwise_with_gw_hp}},
      "rowwise: all three matmuls of a layer in float8. rowwise_with_gw_hp: wgrad in high precision.");
  v.optional(
      "exclude",
      exclude,
      "Regular expressions for whole names of linear layers that do not use float8, such as \".*\\\\.down_proj\".");
}

void Float8Config::check(Problems& problems) const {
  for (size_t i = 0; i < exclude.size(); ++i) {
    try {
      const std::regex compiled(exclude[i]);
    } catch (const std::regex_error& error) {
      problems.add(
          "float8.exclude." + std::to_string(i), "\"" + exclude[i] + "\" is not a regular expression: " + error.what());
    }
  }
}

void use_float8(const Float8Config& config, nn::Model& model) {
  if (!config.enable) {
    return;
  }
  const std::vector<std::regex> patterns(config.exclude.begin(), config.exclude.end());
  nn::use_float8(model, config.recipe, [&](const std::string& name) {
    return std::any_of(
        patterns.begin(), patterns.end(), [&](const std::regex& pattern) { return std::regex_match(name, pattern); });
  });
}

void check_float8(const Float8Config& config, const std::vector<std::shared_ptr<nn::Model>>& stages) {
  if (!config.enable) {
    return;
  }
  std::vector<std::string> names;
  std::vector<std::string> other_sizes;
  int64_t used = 0;
  for (const auto& stage : stages) {
    const nn::Float8Layers layers = nn::float8_layers(*stage);
    for (const auto* list : {&layers.fit, &layers.other_sizes, &layers.kept}) {
      names.insert(names.end(), list->begin(), list->end());
    }
    other_sizes.insert(other_sizes.end(), layers.other_sizes.begin(), layers.other_sizes.end());
    used += nn::count_float8(*stage);
  }
  for (const std::string& pattern : config.exclude) {
    peft::matching(pattern, names, "float8.exclude", "linear layer");
  }
  require(
      used > 0,
      "float8.enable: none of the model's {} linear layers would compute in float8: {} have sizes that are not "
      "multiples of {}, the others are heads, routers or in float8.exclude; remove the section",
      names.size(),
      other_sizes.size(),
      ops::kFloat8Multiple);
}

std::string describe_float8(const Float8Config& config, const nn::Model& model, at::Device device) {
  const nn::Float8Layers layers = nn::float8_layers(model);
  std::string text = fmt::format(
      "{} of {} linear layers, {}",
      nn::count_float8(model),
      layers.size(),
      config.recipe == Float8Recipe::rowwise ? "rowwise" : "rowwise_with_gw_hp");
  if (!layers.other_sizes.empty()) {
    constexpr size_t kShown = 3;
    const size_t shown = std::min(kShown, layers.other_sizes.size());
    text += fmt::format(
        "; {} do not use float8, with sizes that are not multiples of {}: {}{}",
        layers.other_sizes.size(),
        ops::kFloat8Multiple,
        fmt::join(layers.other_sizes.begin(), layers.other_sizes.begin() + static_cast<int64_t>(shown), ", "),
        shown < layers.other_sizes.size() ? ", ..." : "");
  }
  return text + (device.is_cpu() ? "; emulated on the CPU, without a speed-up" : "");
}

}  // namespace lehr::train
