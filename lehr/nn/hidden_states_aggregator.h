// Snapshots of hidden states, collected layer by layer and carried from stage to stage.
#pragma once

#include <vector>

#include "lehr/base/torch.h"

namespace lehr::nn {

/// What is kept of each layer's output.
enum class HiddenStatesAggregationMode {
  no,    ///< Nothing.
  mean,  ///< The mean over the tokens that the aggregation mask selects.
};

/// Collects one (B, H) row a layer, under the mode's rule.
class HiddenStatesAggregator {
 public:
  /// `mask` (B, T) selects tokens, or weighs them; mode `mean` needs it (usage error otherwise).
  HiddenStatesAggregator(HiddenStatesAggregationMode mode, at::Tensor mask);

  /// Takes hidden states (B, T, H). A sequence with no selected token gives zeros.
  void add_hidden_states(const at::Tensor& hidden_states);

  /// All rows so far behind those of `snapshot` (earlier stages; may be undefined), (layers, B, H); undefined for no.
  at::Tensor pack_with_snapshot(const at::Tensor& snapshot);

 private:
  HiddenStatesAggregationMode mode_;
  at::Tensor mask_;
  std::vector<at::Tensor> collected_;
};

}  // namespace lehr::nn
