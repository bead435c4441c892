// Feed-forward blocks with GELU (Hendrycks and Gimpel, https://arxiv.org/abs/1606.08415): plain and gated.
#pragma once

#include "lehr/nn/linear.h"

namespace lehr::nn {

/// The form of GELU, x P(X <= x) for a standard normal X.
enum class Gelu {
  exact,  ///< Computed with erf.
  tanh,   ///< The approximation 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))): GPT-2, Gemma.
};

/// Sizes and options of a GeluMlp.
struct GeluMlpParameters {
  int64_t hidden_size;
  int64_t intermediate_size;
  Gelu gelu = Gelu::exact;
  bool bias = true;
  Init init = Init::normal(0.02);
};

/// fc2(gelu(fc1(x))), the feed-forward block of GPT-2 and BERT, with the names of Phi and OPT.
class GeluMlpImpl : public Module {
 public:
  explicit GeluMlpImpl(const GeluMlpParameters& params);

  /// Maps (..., hidden_size) to (..., hidden_size).
  at::Tensor forward(const at::Tensor& hidden_states);

  Linear fc1{nullptr};
  Linear fc2{nullptr};

 private:
  Gelu gelu_;
};
LEHR_MODULE(GeluMlp);

/// down_proj(gelu(gate_proj(x)) * up_proj(x)), without biases: SwiGLU with GELU (Shazeer,
/// https://arxiv.org/abs/2002.05202), the block of Gemma.
class GeGLUImpl : public Module {
 public:
  GeGLUImpl(int64_t hidden_size, int64_t intermediate_size, Gelu gelu = Gelu::tanh, Init init = Init::normal(0.02));

  /// Maps (..., hidden_size) to (..., hidden_size).
  at::Tensor forward(const at::Tensor& hidden_states);

  Linear gate_proj{nullptr};
  Linear up_proj{nullptr};
  Linear down_proj{nullptr};

 private:
  Gelu gelu_;
};
LEHR_MODULE(GeGLU);

}  // namespace lehr::nn
