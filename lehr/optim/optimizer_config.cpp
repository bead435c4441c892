// Fields and rules of the section `[optimizer]`.
#include "lehr/optim/optimizer_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <regex>

namespace lehr::optim {

void ParameterGroupConfig::fields(FieldVisitor& v) {
  v.required(
      "pattern",
      pattern,
      "Regular expression (ECMAScript) searched for in parameter names, such as \"norm\\\\.weight$\"; the first "
      "matching group applies.");
  v.optional("lr_multiplier", lr_multiplier, "Multiple of optimizer.lr for this group.", at_least(0));
  v.optional("lr", lr, "Learning rate of this group, instead of a multiple.", at_least(0));
  v.optional("beta1", beta1, "Decay of the first moment; unset: optimizer.beta1.", from_below(0, 1));
  v.optional("beta2", beta2, "Decay of the second moment; unset: optimizer.beta2.", from_below(0, 1));
  v.optional("eps", eps, "Added to the square root of the second moment; unset: optimizer.eps.", at_least(0));
  v.optional("weight_decay", weight_decay, "Weight decay of this group; unset: optimizer.weight_decay.", at_least(0));
}

const char* name_of(OptimizerKind kind) {
  switch (kind) {
    case OptimizerKind::adam:
      return "adam";
    case OptimizerKind::sgd:
      return "sgd";
    case OptimizerKind::stochastic_adamw:
      return "stochastic_adamw";
    case OptimizerKind::muon:
      return "muon";
    case OptimizerKind::adamw:
      break;
  }
  return "adamw";
}

void OptimizerConfig::fields(FieldVisitor& v) {
  v.choice(
      "name",
      name,
      {{"AdamW", OptimizerKind::adamw},  // torchtitan's spelling; a value prints as its last name in this list
       {"Adam", OptimizerKind::adam},
       {"adamw", OptimizerKind::adamw},
       {"adam", OptimizerKind::adam},
       {"sgd", OptimizerKind::sgd},
       {"stochastic_adamw", OptimizerKind::stochastic_adamw},
       {"muon", OptimizerKind::muon}},
      "The optimizer. stochastic_adamw: bfloat16 parameters without master weights, rounded stochastically. muon: "
      "orthogonalized updates for hidden matrices, AdamW for the rest.");
  v.optional("lr", lr, "Base learning rate; [lr_scheduler] multiplies it.", at_least(0));
  v.optional("beta1", beta1, "Decay of the running mean of gradients; not for sgd.", from_below(0, 1));
  v.optional("beta2", beta2, "Decay of the running mean of squared gradients; not for sgd.", from_below(0, 1));
  v.optional("eps", eps, "Added to the square root of the second moment; not for sgd.", at_least(0));
  v.optional(
      "weight_decay",
      weight_decay,
      "Weight decay of every parameter: decoupled; for adam and sgd added to the gradient. Unset: 0.1; for adam and "
      "sgd 0.",
      at_least(0));
  v.optional(
      "momentum",
      momentum,
      "sgd and muon: decay of past gradients; unset: 0 for sgd, 0.95 for muon.",
      from_below(0, 1));
  v.optional("dampening", dampening, "sgd: share of each new gradient that the momentum ignores.", from_below(0, 1));
  v.optional("nesterov", nesterov, "sgd and muon: use Nesterov momentum; unset: false for sgd, true for muon.");
  v.optional(
      "state_dtype",
      state_dtype,
      "stochastic_adamw: data type of the moments; bfloat16 moments are rounded stochastically, too.",
      one_of({"float32", "bfloat16"}));
  v.optional("ns_steps", ns_steps, "muon: Newton-Schulz iterations that orthogonalize an update.", between(1, 20));
  v.choice(
      "muon_scale",
      muon_scale,
      {{"original", MuonScale::original}, {"match_rms_adamw", MuonScale::match_rms_adamw}},
      "muon: factor of the learning rate for a matrix: sqrt(max(1, rows / columns)), or 0.2 sqrt(max(rows, columns)), "
      "which suits learning rates of AdamW.");
  v.optional(
      "muon_exclude",
      muon_exclude,
      "muon: regular expression for names of matrices that AdamW updates, besides parameters that are not matrices.");
  v.list("param_groups", param_groups, "Groups of parameters, by name, with hyperparameters of their own.");
}

double OptimizerConfig::weight_decay_or_default() const {
  const bool decoupled = name != OptimizerKind::adam && name != OptimizerKind::sgd;
  return weight_decay.value_or(decoupled ? 0.1 : 0.0);
}

namespace {
void check_pattern(const std::string& key, const std::string& pattern, Problems& problems) {
  try {
    const std::regex compiled(pattern);
  } catch (const std::regex_error& error) {
    problems.add(key, fmt::format("\"{}\" is not a regular expression: {}", pattern, error.what()));
  }
}
}  // namespace

void OptimizerConfig::check(Problems& problems) const {
  const OptimizerConfig other;
  const auto only_for = [&](const std::string& key, bool given, const std::vector<OptimizerKind>& users) {
    if (given && std::find(users.begin(), users.end(), name) == users.end()) {
      std::string words;
      for (const OptimizerKind user : users) {
        words += (words.empty() ? "" : ", ") + std::string(name_of(user));
      }
      problems.add(
          "optimizer." + key,
          fmt::format("{} does not use it, only {}; leave it out, or set optimizer.name", name_of(name), words));
    }
  };
  using enum OptimizerKind;
  const std::vector<OptimizerKind> adaptive{adamw, adam, stochastic_adamw, muon};
  only_for("beta1", beta1 != other.beta1, adaptive);
  only_for("beta2", beta2 != other.beta2, adaptive);
  only_for("eps", eps != other.eps, adaptive);
  only_for("momentum", momentum.has_value(), {sgd, muon});
  only_for("dampening", dampening != other.dampening, {sgd});
  only_for("nesterov", nesterov.has_value(), {sgd, muon});
  only_for("state_dtype", state_dtype != other.state_dtype, {stochastic_adamw});
  only_for("ns_steps", ns_steps != other.ns_steps, {muon});
  only_for("muon_scale", muon_scale != other.muon_scale, {muon});
  only_for("muon_exclude", muon_exclude != other.muon_exclude, {muon});
  check_pattern("optimizer.muon_exclude", muon_exclude, problems);
  if (name == sgd && nesterov.value_or(false) && (momentum.value_or(0) == 0 || dampening > 0)) {
    problems.add("optimizer.nesterov", "needs optimizer.momentum above 0 and no optimizer.dampening");
  }
  if (name == sgd && dampening > 0 && momentum.value_or(0) == 0) {
    problems.add("optimizer.dampening", "has no effect without optimizer.momentum");
  }
  for (size_t i = 0; i < param_groups.size(); ++i) {
    const auto& group = param_groups[i];
    const auto key = [i](const char* field) { return fmt::format("optimizer.param_groups.{}.{}", i, field); };
    const auto in_group = [i](const char* field) { return fmt::format("param_groups.{}.{}", i, field); };
    only_for(in_group("beta1"), group.beta1.has_value(), adaptive);
    only_for(in_group("beta2"), group.beta2.has_value(), adaptive);
    only_for(in_group("eps"), group.eps.has_value(), adaptive);
    if (group.lr && group.lr_multiplier != 1.0) {
      problems.add(key("lr"), "is given together with lr_multiplier; set one of the two");
    }
    check_pattern(key("pattern"), group.pattern, problems);
  }
}

}  // namespace lehr::optim
