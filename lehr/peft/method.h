// Parameter-efficient fine-tuning methods: which modules get adapters, and which are fully tuned.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

namespace lehr::peft {

/// Low-rank adapters on linear layers: y = W x + scaling * B A dropout(x), with A (r, in) and B (out, r)
/// (Hu et al., https://arxiv.org/abs/2106.09685).
struct Lora {
  /// Regular expression (ECMAScript) that must match a module's whole dotted name; only linear layers are candidates.
  std::string module_name_pattern = {};
  int64_t r = 8;            ///< Rank.
  double alpha = 16;        ///< Numerator of the scaling.
  double dropout = 0;       ///< Dropout probability of the adapter's inputs in training.
  bool use_rslora = false;  ///< Use the scaling alpha / sqrt(r) (Kalajdzievski, https://arxiv.org/abs/2312.03732).

  /// alpha / r, or alpha / sqrt(r).
  double scaling() const;
};

/// Modules whose weights, including those of their submodules, stay trainable.
struct FullTune {
  std::string module_name_pattern = {};  ///< Like Lora's, but any module is a candidate.
};

struct Method;

/// Several methods on one model. No module may be selected by two of them, unless both are FullTune.
struct Stack {
  std::vector<Method> methods;
};

/// One of the methods.
struct Method {
  std::variant<Lora, FullTune, Stack> kind;
};

}  // namespace lehr::peft
