// Master weights: parameters in one type, arithmetic in another.
#pragma once

#include <vector>

#include "lehr/nn/module.h"

namespace lehr::train {

struct TrainingConfig;

/// The type of the parameters, their gradients and the optimizer's state.
at::ScalarType parameter_type(const TrainingConfig& config);
/// The type that forward and backward compute in.
at::ScalarType compute_type(const TrainingConfig& config);

/// The type that ranks sum gradients in, where each keeps a part of them.
at::ScalarType reduce_type(const TrainingConfig& config);

/// Lets forward read copies of the parameters in `compute`, while the parameters themselves, their gradients and the
/// optimizer stay in their own type. With both types equal it does nothing.
class MixedPrecision {
 public:
  MixedPrecision(std::vector<nn::NamedParameter> parameters, at::ScalarType compute);
  /// Lets forward read the parameters themselves again.
  ~MixedPrecision();
  MixedPrecision(const MixedPrecision&) = delete;
  MixedPrecision& operator=(const MixedPrecision&) = delete;

  /// Copies the parameters' present values into what forward reads. Call after every update (and load).
  void refresh();

  /// Adds the gradients of one backward to those of the parameters, in the parameters' type, and clears them.
  void collect_gradients();

  /// Forgets gradients that were not collected.
  void clear_gradients();

 private:
  struct Copy {
    nn::ParameterPtr parameter;
    at::Tensor compute;
  };
  std::vector<Copy> copies_;
};

}  // namespace lehr::train
