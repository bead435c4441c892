// Exchange of every rank's findings, for errors that name the rank.
#pragma once

#include <string>
#include <type_traits>
#include <vector>

#include "lehr/train/ranks.h"

namespace lehr::train {

/// Writes the `size` bytes at `here` of every rank to `all`, by rank. With several ranks; all must call it.
void gather_bytes(const void* here, int64_t size, void* all, const Ranks& ranks);

/// Returns `here` of every rank, by rank. All ranks must call it.
template <class Finding>
std::vector<Finding> findings_of_all(const Finding& here, const Ranks& ranks) {
  static_assert(std::is_trivially_copyable_v<Finding>, "it is sent as bytes");
  if (ranks.context() == nullptr) {
    return {here};
  }
  std::vector<Finding> found(static_cast<size_t>(ranks.world_size()));
  gather_bytes(&here, sizeof here, found.data(), ranks);
  return found;
}

/// Returns "rank 3 (tp 1)", or "this device" on one device.
std::string place_of(const Ranks& ranks, int64_t rank);

}  // namespace lehr::train
