// Assignment of whole tensors to owners: the ranks that gather and compute them, if computations need whole tensors and
// ranks hold shards.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "lehr/base/box.h"
#include "lehr/base/torch.h"

namespace lehr::shard {

/// A parameter and the region that each member of a group holds. Members are in the order of replicas: `members /
/// replicas` members hold the whole parameter together, and all replicas hold the same regions.
struct SpreadTensor {
  std::vector<int64_t> shape = {};
  std::vector<Box> boxes = {};  ///< By member. May be empty or equal for several members; they never overlap otherwise.
};

/// The last dimensions of a parameter at one index of the dimensions before them: a matrix.
struct Piece {
  size_t tensor = 0;                ///< Index of the parameter.
  std::vector<int64_t> index = {};  ///< In the leading dimensions.
  int64_t numel = 0;
  double cost = 0;
  int64_t owner = 0;      ///< The member that computes it.
  bool gathered = false;  ///< The owner needs parts of other members.
  bool spread = false;    ///< Other members need parts of the result.
  bool sent() const { return gathered || spread; }
};

/// The assignment of all pieces, equal on all members.
struct OwnerPlan {
  std::vector<Piece> pieces = {};
  /// Pieces that are sent, by wave: the indices of the pieces of all owners.
  std::vector<std::vector<size_t>> waves = {};
  /// The work of each member.
  std::vector<double> loads = {};
};

/// Assigns every piece to the member with the least work so far, among those that hold all of it, or else among all.
/// Pieces with one candidate are first, then the costliest. A wave has at most `wave_elements` elements of an owner, or
/// one piece; to get eight waves, the limit is lowered, but not below 2^20. `cost` gets the last `dims` sizes.
OwnerPlan plan_owners(
    const std::vector<SpreadTensor>& tensors,
    int64_t dims,
    const std::function<double(at::IntArrayRef shape)>& cost,
    int64_t members,
    int64_t wave_elements);

/// Returns the region of a piece, in its own dimensions, that this member holds; nothing if it holds none of it.
Box part_of(const SpreadTensor& tensor, const Piece& piece, int64_t member);

/// Returns the member that sends this part to the owner: the owner if it holds the same part, else the first member of
/// the owner's replica that does.
int64_t source_of(const SpreadTensor& tensor, const Piece& piece, int64_t member, int64_t replicas);

}  // namespace lehr::shard
