// Mixed precision with master weights: parameters in one dtype, computation in another.
#pragma once

#include <vector>

#include "lehr/nn/module.h"

namespace lehr::train {

struct TrainingConfig;

/// The dtype of parameters, gradients and optimizer state.
at::ScalarType parameter_type(const TrainingConfig& config);
/// The dtype of forward and backward.
at::ScalarType compute_type(const TrainingConfig& config);

/// The dtype of the reduce-scatter of gradients over ranks that shard parameters.
at::ScalarType reduce_type(const TrainingConfig& config);

/// Makes forward read copies of the parameters in the dtype `compute`, while the parameters, their gradients and the
/// optimizer keep theirs. Does nothing if both dtypes are equal.
class MixedPrecision {
 public:
  MixedPrecision(std::vector<nn::NamedParameter> parameters, at::ScalarType compute);
  /// Makes forward read the parameters themselves again.
  ~MixedPrecision();
  MixedPrecision(const MixedPrecision&) = delete;
  MixedPrecision& operator=(const MixedPrecision&) = delete;

  /// Updates the copies from the parameters. Call it after every update (and load).
  void refresh();

  /// Adds the gradients of one backward to those of the parameters, in the parameters' dtype, and clears them.
  void collect_gradients();

  /// Discards gradients that were not collected.
  void clear_gradients();

 private:
  struct Copy {
    nn::ParameterPtr parameter;
    at::Tensor compute;
  };
  std::vector<Copy> copies_;
};

}  // namespace lehr::train
