#include "lehr/shard/owner_plan.h"

#include <algorithm>
#include <numeric>

#include "lehr/base/error.h"

namespace lehr::shard {

namespace {
std::vector<Piece> pieces_of(
    const std::vector<SpreadTensor>& tensors, int64_t dims, const std::function<double(at::IntArrayRef shape)>& cost) {
  std::vector<Piece> pieces;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const auto& shape = tensors[i].shape;
    invariant(
        static_cast<int64_t>(shape.size()) >= dims,
        "whole tensors: expected {} dimensions, found {}",
        dims,
        shape.size());
    const std::vector<int64_t> leading(shape.begin(), shape.end() - dims);
    const std::vector<int64_t> own(shape.end() - dims, shape.end());
    for (int64_t number = 0; number < c10::multiply_integers(leading); ++number) {
      std::vector<int64_t> index(leading.size());
      int64_t rest = number;
      for (size_t d = leading.size(); d-- > 0;) {
        index[d] = rest % leading[d];
        rest /= leading[d];
      }
      pieces.push_back(
          {.tensor = i, .index = std::move(index), .numel = c10::multiply_integers(own), .cost = cost(own)});
    }
  }
  return pieces;
}

bool holds(const SpreadTensor& tensor, const Piece& piece, int64_t member) {
  return !part_of(tensor, piece, member).empty();
}

bool holds_all(const SpreadTensor& tensor, const Piece& piece, int64_t member) {
  return holds(tensor, piece, member) &&
         c10::multiply_integers(shape_of(part_of(tensor, piece, member))) == piece.numel;
}

// The members that may own a piece: those that hold all of it, else all.
std::vector<int64_t> candidates_of(const SpreadTensor& tensor, const Piece& piece, int64_t members) {
  std::vector<int64_t> whole;
  for (int64_t member = 0; member < members; ++member) {
    if (holds_all(tensor, piece, member)) {
      whole.push_back(member);
    }
  }
  if (whole.empty()) {
    whole.resize(static_cast<size_t>(members));
    std::iota(whole.begin(), whole.end(), 0);
  }
  return whole;
}

// Several waves, so that their transfers overlap with computation; but not of small messages.
int64_t size_of_waves(const OwnerPlan& plan, int64_t members, int64_t most) {
  constexpr int64_t kWaves = 8, kSmallest = 1 << 20;
  std::vector<int64_t> elements(static_cast<size_t>(members));
  for (const Piece& piece : plan.pieces) {
    elements[static_cast<size_t>(piece.owner)] += piece.sent() ? piece.numel : 0;
  }
  return std::min(most, std::max(kSmallest, *std::max_element(elements.begin(), elements.end()) / kWaves));
}

void fill_waves(OwnerPlan& plan, const std::vector<size_t>& order, int64_t members, int64_t most) {
  const int64_t wave_elements = size_of_waves(plan, members, most);
  std::vector<size_t> wave_of(static_cast<size_t>(members));
  std::vector<int64_t> elements(static_cast<size_t>(members));
  for (const size_t i : order) {
    const Piece& piece = plan.pieces[i];
    if (!piece.sent()) {
      continue;
    }
    const auto owner = static_cast<size_t>(piece.owner);
    if (elements[owner] > 0 && elements[owner] + piece.numel > wave_elements) {
      ++wave_of[owner];
      elements[owner] = 0;
    }
    elements[owner] += piece.numel;
    plan.waves.resize(std::max(plan.waves.size(), wave_of[owner] + 1));
    plan.waves[wave_of[owner]].push_back(i);
  }
}
}  // namespace

Box part_of(const SpreadTensor& tensor, const Piece& piece, int64_t member) {
  const Box& box = tensor.boxes[static_cast<size_t>(member)];
  for (size_t d = 0; d < piece.index.size(); ++d) {
    if (piece.index[d] < box[d].begin || piece.index[d] >= box[d].end) {
      return {};
    }
  }
  Box part(box.begin() + static_cast<int64_t>(piece.index.size()), box.end());
  const bool empty = std::any_of(part.begin(), part.end(), [](const Range& range) { return range.size() <= 0; });
  return empty ? Box{} : part;
}

int64_t source_of(const SpreadTensor& tensor, const Piece& piece, int64_t member, int64_t replicas) {
  const auto box = [&](int64_t other) -> const Box& { return tensor.boxes[static_cast<size_t>(other)]; };
  if (box(piece.owner) == box(member)) {
    return piece.owner;
  }
  const int64_t replica = static_cast<int64_t>(tensor.boxes.size()) / replicas;
  int64_t first = piece.owner / replica * replica;
  while (box(first) != box(member)) {
    ++first;
  }
  return first;
}

OwnerPlan plan_owners(
    const std::vector<SpreadTensor>& tensors,
    int64_t dims,
    const std::function<double(at::IntArrayRef shape)>& cost,
    int64_t members,
    int64_t wave_elements) {
  OwnerPlan plan{.pieces = pieces_of(tensors, dims, cost), .waves = {}, .loads = {}};
  plan.loads.resize(static_cast<size_t>(members));
  std::vector<std::vector<int64_t>> candidates;
  for (const Piece& piece : plan.pieces) {
    candidates.push_back(candidates_of(tensors[piece.tensor], piece, members));
  }
  std::vector<size_t> order(plan.pieces.size());
  std::iota(order.begin(), order.end(), size_t{0});
  // Those without a choice first: the others then even out the loads.
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    const bool a_is_fixed = candidates[a].size() == 1, b_is_fixed = candidates[b].size() == 1;
    return a_is_fixed != b_is_fixed ? a_is_fixed : plan.pieces[a].cost > plan.pieces[b].cost;
  });
  for (const size_t i : order) {
    Piece& piece = plan.pieces[i];
    const SpreadTensor& tensor = tensors[piece.tensor];
    piece.owner = *std::min_element(candidates[i].begin(), candidates[i].end(), [&](int64_t a, int64_t b) {
      return plan.loads[static_cast<size_t>(a)] < plan.loads[static_cast<size_t>(b)];
    });
    plan.loads[static_cast<size_t>(piece.owner)] += piece.cost;
    piece.gathered = !holds_all(tensor, piece, piece.owner);
    for (int64_t member = 0; member < members; ++member) {
      piece.spread = piece.spread || (member != piece.owner && holds(tensor, piece, member));
    }
  }
  fill_waves(plan, order, members, wave_elements);
  return plan;
}

}  // namespace lehr::shard
