// The experts of an MoE layer in parts: some experts are computed while the rows of others are still being sent.
#pragma once

#include <optional>

#include "lehr/nn/experts.h"
#include "lehr/ops/grouped_linear/grouped_weight.h"

namespace lehr::nn {

/// Throws a usage error for experts with adapters or in float8, which are computed all at once.
void require_parts(const GroupedExperts& experts);

/// One forward pass of GroupedExperts (ops/grouped_linear/grouped_weight.h).
class ExpertParts {
 public:
  /// Construct it before the rows of the first part are waited for. Throws a usage error as require_parts(), and for
  /// experts with hooks.
  explicit ExpertParts(const GroupedExperts& experts);

  /// Maps the rows (n, H) of the experts first, first + 1, ..., sorted by expert, to (n, H). `ends` has one value for
  /// each of these experts. Each expert is in one part.
  at::Tensor forward(const at::Tensor& rows, const at::Tensor& ends, int64_t first) const;

 private:
  struct Layer {
    explicit Layer(const GroupedLinear& layer);
    at::Tensor operator()(const at::Tensor& rows, const at::Tensor& ends, int64_t first) const;
    ops::GroupedWeight weight;
    at::Tensor bias;
  };
  std::optional<ops::SwiGLUClamp> clamp_;
  std::optional<Layer> gate_;     // null with a clamp, and without a gate
  std::optional<Layer> up_;       // null with a clamp
  std::optional<Layer> gate_up_;  // null without a clamp
  Layer down_;
};

}  // namespace lehr::nn
