// Row orders of fused projections, in both directions.
#include "lehr/model/fused_projection.h"

#include <gtest/gtest.h>

#include <map>

#include "lehr/state/map_stream.h"

namespace lehr::model {
namespace {

using Values = std::map<std::string, std::vector<int64_t>>;

at::Tensor rows(int64_t first, int64_t count) {
  return at::arange(first, first + count).unsqueeze(1);
}

// The first element of each row of what the map makes of these tensors.
Values mapped(const state::StateMap& map, const std::vector<std::pair<std::string, at::Tensor>>& stored) {
  const state::ValueSource source(stored);
  Values found;
  state::stream(state::BoundMap(map, source.specs()), source, [&](const state::MappedTensor& part) {
    const at::Tensor first = part.tensor.select(1, 0).to(at::kLong).contiguous();
    found[part.name].assign(first.data_ptr<int64_t>(), first.data_ptr<int64_t>() + first.numel());
  });
  return found;
}

TEST(FusedProjection, HasTheRowsOfOneTensorGroupByGroup) {
  const auto map = fused_projection({{"stored", {2, 1}}}, "fused", 2);
  EXPECT_EQ(mapped(map, {{"stored", rows(0, 6)}}), (Values{{"fused", {0, 1, 4, 2, 3, 5}}}));
}

TEST(FusedProjection, JoinsTensorsAndIsInverted) {
  const auto map = fused_projection({{"a", {1, 1}}, {"b", {2}}}, "fused", 2);
  EXPECT_EQ(mapped(map, {{"a", rows(0, 4)}, {"b", rows(4, 4)}}), (Values{{"fused", {0, 2, 4, 5, 1, 3, 6, 7}}}));
  const at::Tensor fused = at::tensor({0, 2, 4, 5, 1, 3, 6, 7}, at::kLong).unsqueeze(1);
  EXPECT_EQ(mapped(map.inverse(), {{"fused", fused}}), (Values{{"a", {0, 1, 2, 3}}, {"b", {4, 5, 6, 7}}}));
}

}  // namespace
}  // namespace lehr::model
