// The section `[optimizer]`: the optimizer, its hyperparameters, and groups of parameters that have their own.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lehr/config/fields.h"

namespace lehr::optim {

/// `[[optimizer.param_groups]]`: parameters whose name matches the pattern. Unset values are those of the optimizer.
struct ParameterGroupConfig {
  std::string pattern = {};
  double lr_multiplier = 1.0;
  std::optional<double> lr = {};
  std::optional<double> beta1 = {};
  std::optional<double> beta2 = {};
  std::optional<double> eps = {};
  std::optional<double> weight_decay = {};

  void fields(FieldVisitor& v);
};

/// The optimizers that a config can name.
enum class OptimizerKind {
  adamw,             ///< AdamW
  adam,              ///< Adam
  sgd,               ///< SGD
  stochastic_adamw,  ///< StochasticAdamW
  muon,              ///< Muon for hidden matrices, AdamW for all other parameters
};
/// Returns the name in config files: "adamw".
const char* name_of(OptimizerKind kind);

/// The factor on Muon's learning rate for a matrix.
enum class MuonScale {
  original,         ///< sqrt(max(1, rows / columns)), as in Keller Jordan's code
  match_rms_adamw,  ///< 0.2 sqrt(max(rows, columns)): the RMS of AdamW's updates (https://arxiv.org/abs/2502.16982)
};

/// The section `[optimizer]`. A key that the optimizer does not use must not be set. Weight decay applies to every
/// parameter, including norms and embeddings, unless a group overrides it.
struct OptimizerConfig {
  OptimizerKind name = OptimizerKind::adamw;
  double lr = 8e-4;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  std::optional<double> weight_decay = {};
  std::optional<double> momentum = {};
  double dampening = 0;
  std::optional<bool> nesterov = {};
  std::string state_dtype = "float32";
  int64_t ns_steps = 5;
  MuonScale muon_scale = MuonScale::match_rms_adamw;
  /// conv1d: the convolutions of linear attention have three dimensions, too, but one row per channel, no matrix.
  std::string muon_exclude = "embed_tokens|lm_head|score|norm|bias|conv1d";
  std::vector<ParameterGroupConfig> param_groups = {};

  void fields(FieldVisitor& v);
  void check(Problems& problems) const;
  /// Returns the given value; by default 0.1 if decay is decoupled, and 0 for adam and sgd, which add it to the
  /// gradient.
  double weight_decay_or_default() const;
};

}  // namespace lehr::optim
