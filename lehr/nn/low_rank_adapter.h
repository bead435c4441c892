// The interface of an adapter for tensor parallelism: one matrix for each side of the layer's weight.
#pragma once

#include "lehr/nn/module.h"

namespace lehr::nn {

/// A LinearAdapter that adds B A x to W x.
class LowRankAdapter {
 public:
  virtual ~LowRankAdapter() = default;
  /// A (r, in_features), whose columns are sharded with those of W.
  virtual const ParameterPtr& input_matrix() const = 0;
  /// B (out_features, r), whose rows are sharded with those of W.
  virtual const ParameterPtr& output_matrix() const = 0;
  /// Returns whether it drops elements of its input in training. Its masks follow a shard of the input's features, not
  /// one of its tokens.
  virtual bool drops() const = 0;
};

}  // namespace lehr::nn
