// A Feistel network with cycle walking (Black and Rogaway, "Ciphers with arbitrary finite domains", 2002).
#include "lehr/data/permutation.h"

namespace lehr::data {
namespace {

constexpr int kRounds = 8;

uint64_t mix(uint64_t value) {
  value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9;
  value = (value ^ (value >> 27)) * 0x94D049BB133111EB;
  return value ^ (value >> 31);
}

}  // namespace

Permutation::Permutation(int64_t size, uint64_t key) : size_(static_cast<uint64_t>(size)), key_(key), half_bits_(4) {
  // At least 256 elements: with halves of only a few bits, the network would have too few permutations.
  while (half_bits_ < 31 && (uint64_t{1} << (2 * half_bits_)) < size_) {
    ++half_bits_;
  }
}

int64_t Permutation::operator()(int64_t index) const {
  const uint64_t mask = (uint64_t{1} << half_bits_) - 1;
  auto value = static_cast<uint64_t>(index);
  do {
    uint64_t left = value >> half_bits_, right = value & mask;
    for (uint64_t round = 1; round <= kRounds; ++round) {
      const uint64_t next = left ^ (mix(right ^ mix(key_ + round * 0x9E3779B97F4A7C15)) & mask);
      left = right;
      right = next;
    }
    value = left << half_bits_ | right;
  } while (value >= size_);
  return static_cast<int64_t>(value);
}

}  // namespace lehr::data
