// The linear layer, to which an adapter can be attached.
#pragma once

#include <optional>

#include "lehr/nn/module.h"
#include "lehr/ops/linear_float8/linear_float8.h"

namespace lehr::nn {

/// An addition to a linear layer's output, such as a low-rank update (lehr/peft). It is a child module of the layer.
class LinearAdapter : public Module {
 public:
  /// Maps (..., in_features) to (..., out_features).
  virtual at::Tensor forward(const at::Tensor& input) = 0;
};

/// y = x W^T (+ b), with W (out_features, in_features). Every matmul weight of a model belongs to a LinearImpl, so that
/// sharding, adapters and deferred wgrad are implemented once.
class LinearImpl : public Module {
 public:
  LinearImpl(int64_t in_features, int64_t out_features, Init init = Init::normal(0.02), bool bias = false);
  ~LinearImpl() override;

  /// Maps (..., in_features) to (..., out_features).
  at::Tensor forward(const at::Tensor& input);

  /// Adds adapter(x) to every output from now on; the adapter becomes the child `name`. Throws a usage error if the
  /// layer already has one.
  void set_adapter(const std::string& name, std::shared_ptr<LinearAdapter> adapter);
  /// Removes the adapter, if there is one.
  void remove_adapter();
  const std::shared_ptr<LinearAdapter>& adapter() const { return adapter_; }

  /// Computes the matmul in float8 from now on (ops/linear_float8/linear_float8.h). The parameters keep their dtype,
  /// and an adapter computes in its own.
  void set_float8(ops::Float8Recipe recipe) { float8_ = recipe; }
  const std::optional<ops::Float8Recipe>& float8() const { return float8_; }

  /// Uses the weight of another module from now on, instead of a parameter of its own: tied weights.
  void read_weight_from(const ParameterPtr& other);
  /// The other module's parameter; null if the weight is the layer's own.
  const ParameterPtr& tied() const { return tied_; }

  at::Tensor weight;  // (out_features, in_features)
  at::Tensor bias;    // (out_features), undefined without bias

 private:
  ParameterPtr tied_;  // the other module's parameter, which has `weight` as a slot
  std::shared_ptr<LinearAdapter> adapter_;
  std::string adapter_name_;
  std::optional<ops::Float8Recipe> float8_;
};
LEHR_MODULE(Linear);

}  // namespace lehr::nn
