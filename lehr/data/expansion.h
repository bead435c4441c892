// The limit on the expansion of a compressed file.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "lehr/base/error.h"
#include "lehr/data/limits.h"

namespace lehr::data {

/// Counts the bytes read from a compressed file of `compressed` bytes, and refuses one that expands without bound
/// ("bomb").
class Expansion {
 public:
  Expansion(std::string name, int64_t compressed) : name_(std::move(name)), most_(most_expanded_bytes(compressed)) {}

  /// Throws a usage error that names the file if the sum is more than most_expanded_bytes().
  void add(int64_t bytes) {
    bytes_ += bytes;
    require(
        bytes_ <= most_,
        "{}: expands to more than {} times its size; if that is intended, store it uncompressed",
        name_,
        kMaxExpansion);
  }

 private:
  std::string name_;
  int64_t most_;
  int64_t bytes_ = 0;
};

}  // namespace lehr::data
