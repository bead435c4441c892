#include "lehr/plan/links.h"

#include <gmock/gmock.h>

#include "lehr/base/error.h"

namespace lehr::plan {
namespace {

const mesh::DeviceMeshParameters kMesh{
    .pipeline_parallel = 2,
    .data_parallel_replicate = 2,
    .data_parallel_shard = 4,
    .context_parallel = 2,
    .tensor_parallel = 4,
    .expert_parallel = 16};

// Round numbers keep the closed forms readable.
Machine plain() {
  return {
      .node_gb_per_second = 100,
      .node_latency_us = 10,
      .network_gb_per_second = 10,
      .network_latency_us = 100,
      .achieved_link_fraction = 1};
}

TEST(PlaceGroup, FillsNodesWithTheInnermostAxesFirst) {
  EXPECT_EQ(place_group("tp", kMesh, 8), (GroupPlacement{.size = 4, .per_node = 4, .nodes = 1}));
  EXPECT_EQ(place_group("cp", kMesh, 8), (GroupPlacement{.size = 2, .per_node = 2, .nodes = 1}));
  EXPECT_EQ(place_group("dp_shard", kMesh, 8), (GroupPlacement{.size = 4, .per_node = 1, .nodes = 4}));
  EXPECT_EQ(place_group("fsdp", kMesh, 8), (GroupPlacement{.size = 8, .per_node = 2, .nodes = 4}));
  EXPECT_EQ(place_group("dp_shard,cp", kMesh, 8), place_group("fsdp", kMesh, 8));
  EXPECT_EQ(place_group("dp_shard,tp", kMesh, 8), (GroupPlacement{.size = 16, .per_node = 4, .nodes = 4}));
  EXPECT_EQ(place_group("ep", kMesh, 8), (GroupPlacement{.size = 16, .per_node = 8, .nodes = 2}));
  EXPECT_EQ(place_group("ep_shard", kMesh, 8), (GroupPlacement{.size = 2, .per_node = 1, .nodes = 2}));
  EXPECT_EQ(place_group("pp", kMesh, 8), (GroupPlacement{.size = 2, .per_node = 1, .nodes = 2}));
  EXPECT_EQ(place_group("none", kMesh, 8).size, 1);
}

TEST(PlaceGroup, RefusesAnUnknownAxisByName) {
  EXPECT_THAT([] { place_group("tq", kMesh, 8); }, ::testing::ThrowsMessage<Error>(::testing::HasSubstr("axis 'tq'")));
}

// Tolerances are those of sums of a few doubles.
TEST(CollectiveSeconds, WithinANodeEqualARing) {
  const GroupPlacement group{.size = 4, .per_node = 4, .nodes = 1};
  const double whole = 4e9;
  const double ring = 3 * 10e-6 + 0.75 * whole / 100e9;
  EXPECT_DOUBLE_EQ(collective_seconds(plain(), group, "all_gather", whole / 4), ring);
  EXPECT_DOUBLE_EQ(collective_seconds(plain(), group, "reduce_scatter", whole), ring);
  EXPECT_DOUBLE_EQ(collective_seconds(plain(), group, "all_reduce", whole), 2 * ring);
  EXPECT_DOUBLE_EQ(collective_seconds(plain(), group, "all_to_all", whole), ring);
  EXPECT_EQ(collective_seconds(plain(), {}, "all_reduce", whole), 0);
}

TEST(CollectiveSeconds, DirectLinksServeOnlyTheirPairOfDevices) {
  Machine direct = plain();
  direct.ranks_per_node = 4;
  direct.node_direct_links = true;
  const GroupPlacement pair{.size = 2, .per_node = 2, .nodes = 1};
  const GroupPlacement node{.size = 4, .per_node = 4, .nodes = 1};
  EXPECT_DOUBLE_EQ(
      link_time(direct, pair, "all_reduce", 1e9).node, 3 * link_time(plain(), pair, "all_reduce", 1e9).node);
  EXPECT_DOUBLE_EQ(link_time(direct, pair, "send", 1e9).node, 3 * link_time(plain(), pair, "send", 1e9).node);
  EXPECT_EQ(link_time(direct, node, "all_reduce", 1e9).node, link_time(plain(), node, "all_reduce", 1e9).node);
}

TEST(CollectiveSeconds, DevicesOfANodeShareTheTrafficToOtherNodes) {
  const double whole = 8e9;
  const double alone = collective_seconds(plain(), {.size = 4, .per_node = 1, .nodes = 4}, "reduce_scatter", whole);
  const double shared = collective_seconds(plain(), {.size = 32, .per_node = 8, .nodes = 4}, "reduce_scatter", whole);
  EXPECT_DOUBLE_EQ(alone, 2 * 100e-6 + 0.75 * whole / 10e9);
  EXPECT_DOUBLE_EQ(shared, 7 * 10e-6 + 2 * 100e-6 + 0.75 * whole / 80e9);
}

TEST(CollectiveSeconds, HalveWithTwiceTheBandwidth) {
  Machine twice = plain();
  twice.node_latency_us = twice.network_latency_us = 0;
  Machine once = twice;
  twice.node_gb_per_second *= 2;
  twice.network_gb_per_second *= 2;
  for (const char* name : {"all_gather", "reduce_scatter", "all_reduce", "all_to_all", "send"}) {
    const GroupPlacement group{.size = 16, .per_node = 4, .nodes = 4};
    EXPECT_DOUBLE_EQ(collective_seconds(twice, group, name, 1e9), 0.5 * collective_seconds(once, group, name, 1e9))
        << name;
  }
}

TEST(TransferSeconds, DependOnWhetherStagesShareANode) {
  const mesh::DeviceMeshParameters near{.pipeline_parallel = 4, .tensor_parallel = 4};
  EXPECT_DOUBLE_EQ(transfer_seconds(plain(), near, 0, 1, 1e9), 10e-6 + 0.01);
  EXPECT_DOUBLE_EQ(transfer_seconds(plain(), near, 1, 2, 1e9), 100e-6 + 0.1);
}

}  // namespace
}  // namespace lehr::plan
