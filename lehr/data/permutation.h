// Shuffling in constant memory: a permutation of 0..n-1 given by a formula.
#pragma once

#include <cstdint>

namespace lehr::data {

/// A permutation of 0..size-1, selected by `key`: a Feistel network on the next power of four, iterated until the
/// result is in range (cycle walking). Takes constant memory, with random access.
class Permutation {
 public:
  Permutation(int64_t size, uint64_t key);
  /// Returns the image of `index`, which must be in [0, size).
  int64_t operator()(int64_t index) const;

 private:
  uint64_t size_;
  uint64_t key_;
  int half_bits_;
};

}  // namespace lehr::data
