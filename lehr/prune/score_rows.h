// Helpers of scores: selection of the counted tokens, float64 arithmetic in chunks of rows, and means over tokens.
#pragma once

#include <algorithm>

#include "lehr/base/torch.h"

namespace lehr::prune {

/// Returns the rows of activations (..., C), one row per token, as (N, C), of the tokens that count. `counted` is bool
/// with the shape before C; undefined: all count.
at::Tensor counted_rows(const at::Tensor& activations, const at::Tensor& counted);

/// Returns `scores`. Throws a usage error if one is not finite, since then the model's activations or weights are not.
at::Tensor require_finite(const at::Tensor& scores);

/// A mean over tokens, in float64.
class TokenMean {
 public:
  /// Adds the sum over `tokens` tokens.
  void add(const at::Tensor& sum, int64_t tokens);
  /// Resets the sum and the number of tokens to zero.
  void reset();
  /// Returns the mean. Throws a usage error if there was no token, or if the sum is not finite.
  at::Tensor value() const;

 private:
  at::Tensor sum_;
  int64_t tokens_ = 0;
};

/// Calls `body` with chunks of `rows` (N, C) as float64: a copy of all rows might not fit into memory.
template <class Body>
void for_rows_in_float64(const at::Tensor& rows, const Body& body) {
  constexpr int64_t kElements = int64_t{1} << 23;  // 64 MiB
  const int64_t step = std::max<int64_t>(1, kElements / std::max<int64_t>(1, rows.size(1)));
  for (int64_t first = 0; first < rows.size(0); first += step) {
    body(rows.narrow(0, first, std::min(step, rows.size(0) - first)).to(at::kDouble));
  }
}

}  // namespace lehr::prune
