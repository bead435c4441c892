// What the scores of this folder share: the tokens that count, products in float64 some rows at a time, means over
// tokens.
#pragma once

#include <algorithm>

#include "lehr/base/torch.h"

namespace lehr::prune {

/// The rows of activations (..., C), one a token, as (N, C): those whose token counts. `counted` is bool of the shape
/// before C; undefined: all count.
at::Tensor counted_rows(const at::Tensor& activations, const at::Tensor& counted);

/// The scores. Throws a usage error if one is not finite: then the model's activations or weights are not.
at::Tensor require_finite(const at::Tensor& scores);

/// A mean over tokens, in float64.
class TokenMean {
 public:
  /// Adds what `tokens` tokens sum up to.
  void add(const at::Tensor& sum, int64_t tokens);
  /// Forgets everything.
  void reset();
  /// Throws a usage error if there was no token, or the sum is not finite.
  at::Tensor value() const;

 private:
  at::Tensor sum_;
  int64_t tokens_ = 0;
};

/// Calls `body` with the rows (N, C), some at a time, as float64: copies of all of them might not fit into memory.
template <class Body>
void for_rows_in_float64(const at::Tensor& rows, const Body& body) {
  constexpr int64_t kElements = int64_t{1} << 23;  // 64 MiB
  const int64_t step = std::max<int64_t>(1, kElements / std::max<int64_t>(1, rows.size(1)));
  for (int64_t first = 0; first < rows.size(0); first += step) {
    body(rows.narrow(0, first, std::min(step, rows.size(0) - first)).to(at::kDouble));
  }
}

}  // namespace lehr::prune
