// Shuffling without memory: a permutation of 0..n-1 that is a formula.
#pragma once

#include <cstdint>

namespace lehr::data {

/// A permutation of 0..size-1, chosen by `key`: a Feistel network on the next power of four, walked until it falls
/// inside the range. Takes no memory and gives any element at once.
class Permutation {
 public:
  Permutation(int64_t size, uint64_t key);
  /// Where the permutation sends `index`, which must be in [0, size).
  int64_t operator()(int64_t index) const;

 private:
  uint64_t size_;
  uint64_t key_;
  int half_bits_;
};

}  // namespace lehr::data
