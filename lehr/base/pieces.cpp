#include "lehr/base/pieces.h"

#include <algorithm>

namespace lehr {

std::vector<Piece> pieces_of(const std::vector<int64_t>& sizes, int64_t most) {
  std::vector<Piece> pieces;
  for (size_t i = 0; i < sizes.size(); ++i) {
    for (int64_t first = 0; first < sizes[i]; first += most) {
      pieces.push_back({i, first, std::min(first + most, sizes[i])});
    }
  }
  return pieces;
}

}  // namespace lehr
