#include "lehr/train/non_finite.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "lehr/train/rank_findings.h"

namespace lehr::train {

namespace {
bool is_finite(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.numel() == 0) {
    return true;
  }
  const auto [smallest, largest] = tensor.detach().aminmax();
  return std::isfinite(smallest.item<double>()) && std::isfinite(largest.item<double>());
}

// The findings of one rank. They have a fixed size, and are sent to all others.
struct Finding {
  int64_t weights = 0;    // the number of parameters that are not finite
  int64_t gradients = 0;  // and of gradients
  char name[256] = {};    // the first of them, as describe_non_finite defines it

  void set_name(const std::string& text) {
    const std::string end = text.size() < sizeof name ? text : text.substr(text.size() - sizeof name + 1);
    std::memcpy(name, end.c_str(), end.size() + 1);
  }
};

Finding find_here(const std::vector<nn::NamedParameter>& parameters) {
  Finding found;
  std::string weight, gradient;
  for (const auto& [name, parameter] : parameters) {
    if (!is_finite(parameter->value())) {
      weight = found.weights++ == 0 ? name : weight;
    }
    if (!is_finite(parameter->value().grad())) {
      ++found.gradients;
      gradient = name;
    }
  }
  found.set_name(found.weights > 0 ? weight : gradient);
  return found;
}

std::string on_rank(const Ranks& ranks, size_t rank) {
  return ranks.context() == nullptr ? "" : " on " + place_of(ranks, static_cast<int64_t>(rank));
}
}  // namespace

std::string non_finite_parameter(const nn::Module& model) {
  const auto parameters = nn::named_parameters(model);
  const auto found = std::find_if(parameters.begin(), parameters.end(), [](const nn::NamedParameter& one) {
    return one.parameter->trainable() && !is_finite(one.parameter->value());
  });
  return found != parameters.end() ? found->name : "";
}

std::string describe_non_finite(const std::vector<nn::NamedParameter>& parameters, const Ranks& ranks) {
  const std::vector<Finding> all = findings_of_all(find_here(parameters), ranks);
  for (size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].weights > 0) {
      return fmt::format("The weight {}{} was not finite before this step.", all[rank].name, on_rank(ranks, rank));
    }
  }
  // Backward begins at the last pipeline stage, whose ranks have the highest numbers.
  for (size_t rank = all.size(); rank-- > 0;) {
    if (all[rank].gradients > 0) {
      return fmt::format(
          "All weights are finite; the first gradient that is not is that of {}{}.",
          all[rank].name,
          on_rank(ranks, rank));
    }
  }
  return "";
}

}  // namespace lehr::train
