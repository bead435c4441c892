// Whole checkpoints: how files are found, and consistency of index and files.
#include "lehr/state/weights.h"

#include <gmock/gmock.h>

#include <algorithm>

#include "test/state/support.h"

namespace lehr::state {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using testing::error_of;
using testing::fixture;
using ::testing::HasSubstr;
using testing::safetensors_bytes;
using testing::TemporaryFolder;
using testing::write_bytes;

// A file with one-byte tensors of these names.
void write_file(const fs::path& path, const std::vector<std::string>& names) {
  std::string json = "{";
  for (size_t i = 0; i < names.size(); ++i) {
    json += fmt::format(
        R"({}"{}":{{"dtype":"U8","shape":[1],"data_offsets":[{},{}]}})", i == 0 ? "" : ",", names[i], i, i + 1);
  }
  write_bytes(path, safetensors_bytes(json + "}", std::string(names.size(), '\1')));
}

std::string refusal(const fs::path& folder, const std::string& index) {
  write_bytes(folder / "model.safetensors.index.json", index);
  const std::string message = error_of([&] { WeightReader reader(folder); });
  EXPECT_THAT(message, ::testing::StartsWith(folder.string()));
  return message;
}

TEST(WeightReader, ReadsShardsThatTransformersWrote) {
  const WeightReader reader(fixture("sharded"));
  EXPECT_EQ(reader.names().size(), 47);
  EXPECT_EQ(reader.files().size(), 4);
  EXPECT_EQ(reader.total_bytes(), 102624) << "total_size of the index";
  EXPECT_EQ(reader.path(), fixture("sharded"));
  EXPECT_THAT(reader.info("lm_head.weight").shape, ElementsAre(96, 24));
  const at::Tensor head = reader.tensor("lm_head.weight");
  EXPECT_EQ(head.scalar_type(), at::kFloat);
  // Expected values were read from the file with Python's struct, so they are exact.
  EXPECT_EQ(head[0][0].item<double>(), 0.09815807640552521);
  EXPECT_EQ(head[0][2].item<double>(), 0.3551209568977356);
  EXPECT_EQ(head[95][23].item<double>(), 0.2501944303512573);
  EXPECT_THAT(
      error_of([&] { reader.tensor("lm_head.wieght"); }),
      HasSubstr("sharded: lm_head.wieght: no such tensor; did you"));
}

TEST(WeightReader, ReadsSomeRowsOfATensorWithAnyAlignment) {
  const WeightReader reader(fixture("sharded"));
  const at::Tensor head = reader.tensor("lm_head.weight");
  const at::Tensor some = reader.rows("lm_head.weight", 90, 93);
  EXPECT_TRUE(testing::bit_equal(some, head.narrow(0, 90, 3)));
  EXPECT_EQ(some.const_data_ptr(), head.narrow(0, 90, 3).const_data_ptr()) << "a view of the file";
  EXPECT_EQ(reader.rows("lm_head.weight", 96, 96).numel(), 0);
  EXPECT_THAT(
      error_of([&] { reader.rows("lm_head.weight", 90, 97); }),
      HasSubstr("lm_head.weight: rows 90 to 97 were requested, but it has 96"));
  const TemporaryFolder folder;
  const fs::path odd = folder.path() / "odd.safetensors";
  write_bytes(
      odd,
      safetensors_bytes(
          R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"b":{"dtype":"I16","shape":[3],"data_offsets":[1,7]},)"
          R"("c":{"dtype":"U8","shape":[],"data_offsets":[7,8]}})",
          std::string("\0\1\0\2\0\3\0\4", 8)));
  const WeightReader unaligned(odd);
  EXPECT_TRUE(at::equal(unaligned.rows("b", 1, 3), at::tensor({2, 3}, at::kShort)));
  EXPECT_THAT(error_of([&] { unaligned.rows("c", 0, 1); }), HasSubstr("rows 0 to 1 were requested, but it has 0"));
}

TEST(WeightReader, AcceptsAFolderWithAStemAnIndexOrOneFile) {
  const TemporaryFolder folder;
  write_file(folder.path() / "optimizer.safetensors", {"state.m", "state.v"});
  EXPECT_THAT(WeightReader(folder.path(), "optimizer").names(), ElementsAre("state.m", "state.v"));
  EXPECT_THAT(WeightReader(folder.path() / "optimizer.safetensors").names(), ElementsAre("state.m", "state.v"));
  EXPECT_EQ(WeightReader(fixture("sharded/model.safetensors.index.json")).names().size(), 47);
  EXPECT_TRUE(WeightReader::exists(folder.path(), "optimizer"));
  EXPECT_FALSE(WeightReader::exists(folder.path()));
  EXPECT_TRUE(WeightReader::exists(fixture("sharded")));
}

TEST(WeightReader, PrefersTheSingleFileLikeTransformers) {
  const TemporaryFolder folder;
  write_file(folder.path() / "model.safetensors", {"one"});
  write_file(folder.path() / "other.safetensors", {"two"});
  write_bytes(folder.path() / "model.safetensors.index.json", R"({"weight_map":{"two":"other.safetensors"}})");
  EXPECT_THAT(WeightReader(folder.path()).names(), ElementsAre("one"));
}

TEST(WeightReader, ErrorsNameTheFilesItLookedFor) {
  const TemporaryFolder folder;
  EXPECT_THAT(
      error_of([&] { WeightReader reader(folder.path()); }),
      HasSubstr("expected model.safetensors or model.safetensors.index.json, found neither"));
  write_file(folder.path() / "other.safetensors", {"w"});
  EXPECT_THAT(
      error_of([&] { WeightReader reader(folder.path()); }),
      ::testing::EndsWith("found neither; found other.safetensors"));
  EXPECT_THAT(error_of([&] { WeightReader reader("/nonexistent/x"); }), HasSubstr("no such file or folder"));
}

TEST(WeightReader, ShardsWithoutAnIndexAreNamedAndWhatIsMissing) {
  const TemporaryFolder folder;
  for (int shard = 4; shard > 0; --shard) {
    write_file(folder.path() / fmt::format("model-0000{}-of-00004.safetensors", shard), {"w"});
  }
  EXPECT_TRUE(WeightReader::exists(folder.path())) << "so that it is opened, and refused with the reason";
  EXPECT_FALSE(WeightReader::exists(folder.path(), "optimizer"));
  EXPECT_THAT(
      error_of([&] { WeightReader reader(folder.path()); }),
      ::testing::AllOf(
          HasSubstr("found the shards model-00001-of-00004.safetensors, model-00002-of-00004.safetensors, "
                    "model-00003-of-00004.safetensors and 1 more, but not the index"),
          HasSubstr("download model.safetensors.index.json from where they came")));
}

TEST(WeightReader, RefusesAnIndexThatLeavesTheFolder) {
  const TemporaryFolder outside;
  write_file(outside.path() / "secret.safetensors", {"w"});
  fs::create_directory(outside.path() / "model");
  const fs::path folder = outside.path() / "model";
  const std::string absolute = (outside.path() / "secret.safetensors").string();
  for (const std::string& name :
       std::vector<std::string>{"../secret.safetensors", "a/../../secret.safetensors", absolute, ""}) {
    EXPECT_THAT(
        refusal(folder, fmt::format(R"({{"weight_map":{{"w":"{}"}}}})", name)),
        HasSubstr(fmt::format("weight_map: w: expected a file in the same folder, found \"{}\"", name)));
  }
  EXPECT_THAT(refusal(folder, R"({"weight_map":{"w":"a\u0000b"}})"), HasSubstr("expected a file in the same folder"));
}

TEST(WeightReader, RefusesAnIndexThatDoesNotAgreeWithTheFiles) {
  const TemporaryFolder folder;
  write_file(folder.path() / "a.safetensors", {"one", "two"});
  write_file(folder.path() / "b.safetensors", {"two", "three"});
  const fs::path path = folder.path();
  EXPECT_THAT(refusal(path, "{"), HasSubstr("index.json: invalid JSON"));
  EXPECT_THAT(refusal(path, "{}"), HasSubstr("weight_map: expected an object"));
  EXPECT_THAT(refusal(path, R"({"weight_map":{"one":1}})"), HasSubstr("weight_map: one: expected a file name"));
  EXPECT_THAT(
      refusal(path, R"({"weight_map":{"one":"a.safetensors","one":"b.safetensors"}})"),
      HasSubstr("\"one\" occurs twice"));
  EXPECT_THAT(
      refusal(path, R"({"weight_map":{"one":"c.safetensors"}})"),
      HasSubstr("names c.safetensors (for one), which does not exist"));
  EXPECT_THAT(
      refusal(path, R"({"weight_map":{"one":"b.safetensors"}})"),
      HasSubstr("one: expected it in b.safetensors, which does not contain it"));
  EXPECT_THAT(
      refusal(path, R"({"weight_map":{"one":"a.safetensors"}})"),
      HasSubstr("two: a.safetensors contains it, but the index does not list it"));
  EXPECT_THAT(
      refusal(path, R"({"weight_map":{"one":"a.safetensors","two":"a.safetensors","three":"b.safetensors"}})"),
      HasSubstr("two: both a.safetensors and b.safetensors contain it"));
}

TEST(WeightReader, FollowsSymbolicLinksOfTheHubCache) {
  const TemporaryFolder hub;
  const fs::path repository = hub.path() / "models--org--name", snapshot = repository / "snapshots/0af1";
  fs::create_directories(repository / "blobs");
  fs::create_directories(snapshot);
  write_file(repository / "blobs/0123", {"w"});
  fs::create_symlink("../../blobs/0123", snapshot / "model-00001-of-00001.safetensors");
  write_bytes(snapshot / "model.safetensors.index.json", R"({"weight_map":{"w":"model-00001-of-00001.safetensors"}})");
  EXPECT_THAT(WeightReader(snapshot).names(), ElementsAre("w"));
}

}  // namespace
}  // namespace lehr::state
