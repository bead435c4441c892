// The sequences of a batch in kernel bodies, by their cumulative lengths: a document's tokens see no other document.
#pragma once

#include "lehr/ops/cuda/portable.h"

namespace lehr::ops::cuda {

/// Follows the sequences of consecutive tokens. Empty sequences are passed over.
class SequenceWalk {
 public:
  /// Starts at `token`, counted over all rows. `cumulative_lengths` begin with 0; null if the row, which begins at
  /// token `row`, is one sequence.
  LEHR_HOST_DEVICE SequenceWalk(const int32_t* cumulative_lengths, int64_t count, int64_t row, int64_t token)
      : begin_(row), next_(cumulative_lengths), end_(cumulative_lengths) {
    if (cumulative_lengths == nullptr) {
      return;
    }
    end_ += count;
    while (count > 0) {  // the first border after the token
      const int64_t half = count / 2;
      if (next_[half] <= token) {
        next_ += half + 1;
        count -= half + 1;
      } else {
        count = half;
      }
    }
    begin_ = next_[-1];
  }

  /// Advances to `token`, which must not be before the last one, and returns the first token of its sequence.
  LEHR_HOST_DEVICE int64_t begin_of(int64_t token) {
    while (next_ != end_ && *next_ <= token) {
      begin_ = *next_++;
    }
    return begin_;
  }

 private:
  int64_t begin_;
  const int32_t* next_;
  const int32_t* end_;
};

}  // namespace lehr::ops::cuda
