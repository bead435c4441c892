// Places in a space, and choices of one variant for each.
#include <fmt/format.h>

#include "lehr/search/space.h"

namespace lehr::search {

namespace {
using pretrained::kSubblocks;
using pretrained::Subblock;

}  // namespace

const Variant& at(const SearchSpace& space, const Place& place) {
  return space.at(static_cast<size_t>(place.layer)).of(place.subblock).at(place.variant);
}

std::vector<Place> all_variants(const SearchSpace& space) {
  std::vector<Place> places;
  for (size_t layer = 0; layer < space.size(); ++layer) {
    for (const Subblock subblock : kSubblocks) {
      for (size_t variant = 0; variant < space[layer].of(subblock).size(); ++variant) {
        places.push_back({static_cast<int64_t>(layer), subblock, variant});
      }
    }
  }
  return places;
}

std::vector<Place> alternatives(const SearchSpace& space) {
  std::vector<Place> places = all_variants(space);
  std::erase_if(places, [](const Place& place) { return place.variant == 0; });
  return places;
}

std::string describe(const SearchSpace& space, const Place& place) {
  return fmt::format("layer {} {}: {}", place.layer, pretrained::name_of(place.subblock), at(space, place).name);
}

size_t& Choice::of(const Place& place) {
  return (place.subblock == Subblock::attention ? attention : ffn).at(static_cast<size_t>(place.layer));
}

size_t Choice::of(int64_t layer, Subblock subblock) const {
  return (subblock == Subblock::attention ? attention : ffn).at(static_cast<size_t>(layer));
}

Choice teacher_choice(const SearchSpace& space) {
  return {.attention = std::vector<size_t>(space.size(), 0), .ffn = std::vector<size_t>(space.size(), 0)};
}

prune::Pruning pruning_of(const SearchSpace& space, const Choice& choice) {
  prune::Pruning pruning;
  for (size_t layer = 0; layer < space.size(); ++layer) {
    prune::LayerKeeps keeps = space[layer].ffn.at(choice.ffn[layer]).keeps;
    const prune::LayerKeeps& attention = space[layer].attention.at(choice.attention[layer]).keeps;
    keeps.no_attention = attention.no_attention;
    keeps.linear_attention = attention.linear_attention;
    keeps.kv_heads = attention.kv_heads;
    keeps.averaged_kv_heads = attention.averaged_kv_heads;
    keeps.window = attention.window;
    pruning.layers.push_back(std::move(keeps));
  }
  return pruning;
}

std::vector<descriptor::BlockConfig> blocks_of(const SearchSpace& space, const Choice& choice) {
  std::vector<descriptor::BlockConfig> blocks;
  for (size_t layer = 0; layer < space.size(); ++layer) {
    blocks.push_back(
        {.attention = space[layer].attention.at(choice.attention[layer]).block.attention,
         .ffn = space[layer].ffn.at(choice.ffn[layer]).block.ffn});
  }
  return blocks;
}

}  // namespace lehr::search
