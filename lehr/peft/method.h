// The ways to train a part of a model: which modules get adapters, and which keep training as they are.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

namespace lehr::peft {

/// Low-rank adapters on linear layers: y = W x + scaling * B A dropout(x), with A (r, in) and B (out, r)
/// (Hu et al., https://arxiv.org/abs/2106.09685).
struct Lora {
  /// Regular expression (ECMAScript) that must match a module's whole dotted name; linear layers alone are considered.
  std::string module_name_pattern = {};
  int64_t r = 8;            ///< Rank.
  double alpha = 16;        ///< Numerator of the scaling.
  double dropout = 0;       ///< Share of the adapter's inputs that a training step leaves out.
  bool use_rslora = false;  ///< Scaling alpha / sqrt(r) (Kalajdzievski, https://arxiv.org/abs/2312.03732).

  /// alpha / r, or alpha / sqrt(r).
  double scaling() const;
};

/// Modules whose own weights, and those of the modules in them, go on training.
struct FullTune {
  std::string module_name_pattern = {};  ///< As Lora's; any module.
};

struct Method;

/// Several methods on one model. No module may fall to two of them.
struct Stack {
  std::vector<Method> methods;
};

/// One of them.
struct Method {
  std::variant<Lora, FullTune, Stack> kind;
};

}  // namespace lehr::peft
