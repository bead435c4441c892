// Snapshots of hidden states, collected per layer and passed from stage to stage.
#pragma once

#include <vector>

#include "lehr/base/torch.h"

namespace lehr::nn {

/// The aggregate that is kept of each layer's output.
enum class HiddenStatesAggregationMode {
  no,    ///< Nothing.
  mean,  ///< The mean over the tokens that the aggregation mask selects.
};

/// Collects one (B, H) tensor per layer in the given mode.
class HiddenStatesAggregator {
 public:
  /// `mask` (B, T) selects or weights tokens. Throws a usage error if mode `mean` has no mask.
  HiddenStatesAggregator(HiddenStatesAggregationMode mode, at::Tensor mask);

  /// Adds hidden states (B, T, H). A sequence without selected tokens yields zeros.
  void add_hidden_states(const at::Tensor& hidden_states);

  /// Returns all tensors so far after those of `snapshot` (earlier stages; may be undefined), (layers, B, H); undefined
  /// for mode no.
  at::Tensor pack_with_snapshot(const at::Tensor& snapshot);

 private:
  HiddenStatesAggregationMode mode_;
  at::Tensor mask_;
  std::vector<at::Tensor> collected_;
};

}  // namespace lehr::nn
