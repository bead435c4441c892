// The section `[optimizer]`: which optimizer, its numbers, and which parameters get other numbers.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lehr/base/fields.h"

namespace lehr::optim {

/// `[[optimizer.param_groups]]`: parameters whose name the pattern is found in. What is left out is the optimizer's.
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
  muon,              ///< Muon, and AdamW for what is no hidden matrix
};
/// The word that stands in files: "adamw".
const char* name_of(OptimizerKind kind);

/// What muon's learning rate is multiplied by for a matrix.
enum class MuonScale {
  original,         ///< sqrt(max(1, rows / columns)), as in Keller Jordan's
  match_rms_adamw,  ///< 0.2 sqrt(max(rows, columns)): steps as long as AdamW's (arXiv 2502.16982)
};

/// The section `[optimizer]`. A key that the named optimizer does not use must stay away. Weight decay hits every
/// parameter, norms and embeddings too, unless a group says otherwise.
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
  std::string muon_exclude = "embed_tokens|lm_head|score|norm|bias";
  std::vector<ParameterGroupConfig> param_groups = {};

  void fields(FieldVisitor& v);
  void check(Problems& problems) const;
  /// The one given; else 0.1 where it is decoupled, and 0 for adam and sgd, which add it to the gradient.
  double weight_decay_or_default() const;
};

}  // namespace lehr::optim
