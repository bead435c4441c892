// The interface that parallel styles use of a low-rank adapter: its two matrices, and its dropout.
#pragma once

#include <cstdint>
#include <vector>

#include "lehr/nn/module.h"

namespace lehr::nn {

/// A LinearAdapter that adds B A x to W x (LoRA, Hu et al., https://arxiv.org/abs/2106.09685).
class LowRankAdapter {
 public:
  virtual ~LowRankAdapter() = default;
  /// A (r, in_features), whose columns are sharded with those of W.
  virtual const ParameterPtr& input_matrix() const = 0;
  /// B (out_features, r), whose rows are sharded with those of W.
  virtual const ParameterPtr& output_matrix() const = 0;
  /// Makes the dropout masks those of whole sequences from now on, if the inputs (B, T, in_features) hold the chunks
  /// with these numbers of each sequence, of equal length and in this order. Default: {0}, whole sequences. Masks take
  /// account of a shard of the input's features by themselves.
  virtual void set_sequence_chunks(std::vector<int64_t> chunks) = 0;
  /// The same if the inputs hold only part `part` of the `parts` equal ones of these tokens.
  virtual void set_sequence_part(int64_t part, int64_t parts) = 0;
};

}  // namespace lehr::nn
