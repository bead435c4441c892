// Pieces of bounded size of a list of tensors, so that threads are equally busy with a few large or many small ones.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace lehr {

/// Elements [first, last) of tensor `index` of a list.
struct Piece {
  size_t index;
  int64_t first;
  int64_t last;
};

/// Splits a list of tensors with these numbers of elements into pieces of at most `most` elements, in order.
std::vector<Piece> pieces_of(const std::vector<int64_t>& sizes, int64_t most);

}  // namespace lehr
