// The linear layer, and the place where an adapter joins it.
#pragma once

#include <optional>

#include "lehr/nn/module.h"
#include "lehr/ops/linear_float8.h"

namespace lehr::nn {

/// What may be added to a linear layer's output: a low-rank update, say (lehr/peft). Its parameters are those of a
/// child of the layer.
class LinearAdapter : public Module {
 public:
  /// Maps (..., in_features) to (..., out_features).
  virtual at::Tensor forward(const at::Tensor& input) = 0;
};

/// y = x W^T (+ b), with W (out_features, in_features). Every matrix-product weight of a model is one of these, so that
/// what is done to weights (shards, adapters, delayed gradients) is done in one place.
class LinearImpl : public Module {
 public:
  LinearImpl(int64_t in_features, int64_t out_features, Init init = Init::normal(0.02), bool bias = false);
  ~LinearImpl() override;

  /// Maps (..., in_features) to (..., out_features).
  at::Tensor forward(const at::Tensor& input);

  /// Adds adapter(x) to every output from now on; the adapter becomes the child `name`. Throws a usage error if there
  /// is one already.
  void set_adapter(const std::string& name, std::shared_ptr<LinearAdapter> adapter);
  /// Forgets the adapter, if there is one.
  void remove_adapter();
  const std::shared_ptr<LinearAdapter>& adapter() const { return adapter_; }

  /// Computes the product in float8 from now on (ops/linear_float8.h). The parameters stay in their type, and an
  /// adapter computes in its own.
  void set_float8(ops::Float8Recipe recipe) { float8_ = recipe; }
  const std::optional<ops::Float8Recipe>& float8() const { return float8_; }

  /// Reads the weight of another module from now on, instead of a parameter of its own: tied weights.
  void read_weight_from(const ParameterPtr& other);
  /// The other module's parameter that is read; null where the weight is the layer's own.
  const ParameterPtr& tied() const { return tied_; }

  at::Tensor weight;  // (out_features, in_features)
  at::Tensor bias;    // (out_features), undefined without bias

 private:
  ParameterPtr tied_;  // the other module's, which knows `weight` as a slot
  std::shared_ptr<LinearAdapter> adapter_;
  std::string adapter_name_;
  std::optional<ops::Float8Recipe> float8_;
};
LEHR_MODULE(Linear);

}  // namespace lehr::nn
