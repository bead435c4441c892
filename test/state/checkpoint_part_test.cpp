#include "lehr/state/checkpoint_part.h"

#include <gmock/gmock.h>

#include <fstream>

#include "lehr/base/error.h"
#include "lehr/state/integrity.h"
#include "test/state/checkpoint_support.h"

namespace lehr::state {
namespace {
using testing::bit_equal;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using testing::TemporaryFolder;

// The rows [begin, end) of a matrix (4, 3) of float32 and of a vector (4) of bfloat16, and a text that is no Unicode.
CheckpointContents contents_of_rows(int64_t begin, int64_t end) {
  const at::Tensor matrix = at::arange(12, at::kFloat).view({4, 3});
  const at::Tensor vector = at::arange(4, at::kBFloat16);
  CheckpointContents contents{.step = 7, .weights = {}};
  contents.weights.push_back(
      {.stem = "model",
       .tensors = {},
       .max_shard_bytes = 500,
       .all =
           {{.name = "matrix", .dtype = DType::kF32, .shape = {4, 3}},
            {.name = "vector", .dtype = DType::kBF16, .shape = {4}}},
       .parts = {
           {.name = "matrix", .box = {{begin, end}, {0, 3}}, .tensor = matrix.slice(0, begin, end)},
           {.name = "vector", .box = {{begin, end}}, .tensor = vector.slice(0, begin, end)}}});
  contents.weights.push_back(
      {.stem = "optimizer",
       .tensors = {},
       .all = {{.name = "step", .dtype = DType::kI64, .shape = {}}},
       .parts = {{.name = "step", .box = {}, .tensor = at::full({}, 7, at::kLong)}}});
  contents.texts = {{"trainer.json", "{}"}, {"tokenizer.model", std::string("\xff\x00:3", 4)}};
  contents.checked_texts = {"trainer.json"};
  return contents;
}

TEST(CheckpointPart, ReadsWhatWasWritten) {
  const TemporaryFolder folder;
  const CheckpointContents written = contents_of_rows(1, 3);
  write_part(folder.path() / "part", written, 0);
  const CheckpointContents read = read_part(folder.path() / "part");
  EXPECT_EQ(read.step, 7);
  EXPECT_EQ(read.texts, written.texts);
  EXPECT_EQ(read.checked_texts, written.checked_texts);
  ASSERT_EQ(read.weights.size(), written.weights.size());
  for (size_t i = 0; i < read.weights.size(); ++i) {
    const WeightSet& a = read.weights[i];
    const WeightSet& b = written.weights[i];
    EXPECT_EQ(a.stem, b.stem);
    EXPECT_EQ(a.max_shard_bytes, b.max_shard_bytes);
    EXPECT_EQ(pack_infos(a.all), pack_infos(b.all));
    ASSERT_EQ(a.parts.size(), b.parts.size());
    for (size_t part = 0; part < a.parts.size(); ++part) {
      EXPECT_EQ(a.parts[part].name, b.parts[part].name);
      EXPECT_EQ(a.parts[part].box, b.parts[part].box);
      EXPECT_TRUE(bit_equal(a.parts[part].tensor, b.parts[part].tensor));
    }
  }
}

TEST(CheckpointPart, OfAnotherRankThanTheFirstHasNoListOfAllTensors) {
  const TemporaryFolder folder;
  write_part(folder.path() / "part", contents_of_rows(1, 3), 2);
  EXPECT_THAT(read_part(folder.path() / "part").weights.at(0).all, IsEmpty());
}

TEST(CheckpointPart, HasAChecksumThatShowsDamage) {
  const TemporaryFolder folder;
  const fs::path part = folder.path() / "part";
  const FileIntegrity written = write_part(part, contents_of_rows(0, 4), 0);
  const std::string content = read_file(part / kPartFile);
  EXPECT_EQ(written.num_bytes, static_cast<int64_t>(content.size()));
  OneRank alone;
  EXPECT_EQ(find_damage(part, true, alone), std::nullopt);
  std::string flipped = content;
  flipped.back() = static_cast<char>(flipped.back() ^ 1);
  write_file_atomically(part / kPartFile, flipped);
  EXPECT_NE(find_damage(part, true, alone), std::nullopt);
}

// As with checkpoint.verify = false: whatever the byte is, reading ends.
TEST(CheckpointPart, OfDamagedContentIsReadOrRefused) {
  const TemporaryFolder folder;
  const fs::path part = folder.path() / "part";
  write_part(part, contents_of_rows(0, 4), 0);
  const std::string content = read_file(part / kPartFile);
  int refused = 0;
  for (size_t byte = 0; byte < content.size(); ++byte) {
    std::string damaged = content;
    damaged[byte] = static_cast<char>(damaged[byte] ^ 2);
    std::ofstream(part / kPartFile, std::ios::binary) << damaged;
    try {
      read_part(part);
    } catch (const Error&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 0);
}

TEST(CheckpointPart, IsNamedByItsRankAndTheNumberOfRanks) {
  EXPECT_EQ(folder_name({.rank = 3, .world_size = 8}), "rank-3-of-8");
  EXPECT_EQ(part_name("rank-3-of-8"), (PartName{.rank = 3, .world_size = 8}));
  for (const char* other :
       {"", "rank", "rank-8-of-8", "rank--1-of-8", "rank-3-of-8.bak", "rank-03-of-8", "rank-x-of-8"}) {
    EXPECT_EQ(part_name(other), std::nullopt) << other;
  }
}

}  // namespace
}  // namespace lehr::state
