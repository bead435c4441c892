#include "lehr/base/random.h"

#include <gtest/gtest.h>

#include <vector>

#include "lehr/base/error.h"
#include "lehr/base/file.h"
#include "lehr/base/log.h"
#include "lehr/base/torch.h"
#include "lehr/config/suggest.h"

namespace lehr {
namespace {

// Known-answer tests of the Random123 library for philox4x32-10.
TEST(Philox, HasThePublishedAnswers) {
  EXPECT_EQ(philox({0, 0, 0, 0}, {0, 0}), (std::array<uint32_t, 4>{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(
      philox({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}),
      (std::array<uint32_t, 4>{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(
      philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
      (std::array<uint32_t, 4>{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(RandomStream, DrawsTheSameNumbersInAnyOrder) {
  const RandomStream stream(7, "weights");
  std::vector<double> whole(101);
  stream.fill_normal(3, 101, whole.data());
  for (size_t i = whole.size(); i-- > 0;) {
    EXPECT_EQ(whole[i], stream.normal(3 + i));
  }
}

TEST(RandomStream, DiffersByNameAndSeed) {
  EXPECT_NE(RandomStream(1, "a").bits(0), RandomStream(1, "b").bits(0));
  EXPECT_NE(RandomStream(1, "a").bits(0), RandomStream(2, "a").bits(0));
}

TEST(NameHash, OfPartsIsThatOfTheWhole) {
  NameHash parts;
  for (const char* part : {"we", "", "ights", "|1 2"}) {
    parts.add(part);
  }
  EXPECT_EQ(parts.value(), hash_name("weights|1 2"));
  EXPECT_NE(parts.value(), hash_name("weights"));
}

// The seed, the hash of the name and the index have more than 32 bits, so losing a half of one of them would show.
TEST(RandomStream, DrawsTheWordsOfItsPhiloxBlocksInOrder) {
  const RandomStream stream(0x0123456789abcdef, "weights");
  const uint64_t name = hash_name("weights");
  const auto block = [&](uint64_t index) {
    return philox(
        {static_cast<uint32_t>(index),
         static_cast<uint32_t>(index >> 32),
         static_cast<uint32_t>(name),
         static_cast<uint32_t>(name >> 32)},
        {0x89abcdef, 0x01234567});
  };
  for (const uint64_t first : {uint64_t{0}, uint64_t{1} << 40}) {
    for (uint64_t i = first; i < first + 8; ++i) {
      EXPECT_EQ(stream.uniform(i), block(i / 4)[i % 4] * 0x1p-32) << i;
      const auto words = block(i / 2);
      EXPECT_EQ(stream.bits(i), uint64_t{words[2 * (i % 2) + 1]} << 32 | words[2 * (i % 2)]) << i;
    }
  }
}

// A million numbers; tolerances are five standard errors of each moment.
TEST(RandomStream, HasTheMomentsOfItsDistribution) {
  const RandomStream stream(1, "moments");
  constexpr int kCount = 1'000'000;
  std::vector<double> x(kCount);
  stream.fill_normal(0, kCount, x.data());
  double sum = 0, squares = 0, fourth = 0;
  for (const double v : x) {
    sum += v;
    squares += v * v;
    fourth += v * v * v * v;
  }
  EXPECT_NEAR(sum / kCount, 0, 5e-3);
  EXPECT_NEAR(squares / kCount, 1, 7e-3);
  EXPECT_NEAR(fourth / kCount, 3, 5e-2);
  stream.fill_uniform(0, kCount, x.data());
  double mean = 0;
  for (const double v : x) {
    ASSERT_GE(v, 0);
    ASSERT_LT(v, 1);
    mean += v;
  }
  EXPECT_NEAR(mean / kCount, 0.5, 1.5e-3);
}

TEST(Suggest, FindsTheIntendedWord) {
  const std::vector<std::string> known{"warmup_steps", "total_steps", "decay_ratio"};
  EXPECT_EQ(suggest("warmupsteps", known), "warmup_steps");
  EXPECT_EQ(suggest("dceay_ratio", known), "decay_ratio");
  EXPECT_EQ(suggest("colour", known), std::nullopt);
  EXPECT_EQ(suggest("num_kv_heads", {"num_experts", "num_key_value_heads"}), "num_key_value_heads");
  EXPECT_EQ(suggest("num_heads", {"num_layers", "num_key_value_heads"}), std::nullopt) << "less than half of it";
  EXPECT_EQ(edit_distance("ab", "ba"), 1);
}

TEST(File, IsReplacedAtomically) {
  const auto folder = std::filesystem::temp_directory_path() / "lehr_file_test";
  std::filesystem::create_directories(folder);
  write_file_atomically(folder / "a", "one");
  write_file_atomically(folder / "a", "two");
  EXPECT_EQ(read_file(folder / "a"), "two");
  EXPECT_THROW(write_file_atomically(folder / "missing" / "a", "x"), Error);
  EXPECT_THROW(read_file(folder), Error);
  write_file_atomically(folder / "empty", "");
  EXPECT_TRUE(MappedFile(folder / "empty").bytes().empty());
  std::filesystem::create_directory(folder / "b");  // a file cannot replace a folder
  EXPECT_THROW(write_file_atomically(folder / "b", "x"), Error);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder), {}), 3);  // no temporary file is left
  std::filesystem::remove_all(folder);
}

TEST(Log, WritesReadableNumbers) {
  EXPECT_EQ(human_count(1234567), "1.23 M");
  EXPECT_EQ(human_bytes(5e9), "4.66 GiB");
  EXPECT_EQ(human_seconds(192), "3m12s");
  EXPECT_EQ(human_seconds(7500), "2h05m");
}

}  // namespace
}  // namespace lehr
