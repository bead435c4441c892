// Event files, decoded by an independent reader of records and fields.
#include "lehr/metric/tensorboard.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <fstream>
#include <iterator>
#include <map>
#include <span>

#include "lehr/base/crc32c.h"
#include "lehr/base/error.h"
#include "lehr/metric/tensorboard_record.h"

namespace lehr::metric {
namespace {

uint64_t little_endian(std::string_view bytes) {
  uint64_t value = 0;
  for (size_t i = bytes.size(); i-- > 0;) {
    value = (value << 8U) | static_cast<uint8_t>(bytes[i]);
  }
  return value;
}

// Removes TensorFlow's mask from the checksum of a record, as in tensorflow/core/lib/hash/crc32c.h.
uint32_t unmasked(uint64_t stored) {
  const uint32_t rotated = static_cast<uint32_t>(stored) - 0xa282ead8U;
  return (rotated >> 17U) | (rotated << 15U);
}

uint32_t checksum(std::string_view bytes) {
  return crc32c(std::as_bytes(std::span(bytes)));
}

// The data of each record, after all checksums were verified.
std::vector<std::string> read_records(std::string_view file) {
  std::vector<std::string> records;
  while (!file.empty()) {
    const std::string_view length_bytes = file.substr(0, 8);
    const auto length = static_cast<size_t>(little_endian(length_bytes));
    EXPECT_EQ(unmasked(little_endian(file.substr(8, 4))), checksum(length_bytes));
    const std::string_view data = file.substr(12, length);
    EXPECT_EQ(unmasked(little_endian(file.substr(12 + length, 4))), checksum(data));
    records.emplace_back(data);
    file.remove_prefix(16 + length);
  }
  return records;
}

// Fields by number: numbers of any width as their raw bits, all others as bytes.
struct Fields {
  std::multimap<int, uint64_t> numbers;
  std::multimap<int, std::string> bytes;

  uint64_t number(int field) const { return numbers.find(field)->second; }
  std::string text(int field) const { return bytes.find(field)->second; }
};

Fields decode(std::string_view message) {
  Fields fields;
  size_t at = 0;
  const auto varint = [&] {
    uint64_t value = 0;
    for (unsigned shift = 0;; shift += 7) {
      const auto byte = static_cast<uint8_t>(message.at(at++));
      value |= static_cast<uint64_t>(byte & 0x7FU) << shift;
      if ((byte & 0x80U) == 0) {
        return value;
      }
    }
  };
  while (at < message.size()) {
    const uint64_t key = varint();
    const int field = static_cast<int>(key >> 3U);
    const auto take = [&](size_t size) {
      at += size;
      return message.substr(at - size, size);
    };
    switch (key & 7U) {
      case 0:
        fields.numbers.emplace(field, varint());
        break;
      case 1:
        fields.numbers.emplace(field, little_endian(take(8)));
        break;
      case 2:
        fields.bytes.emplace(field, take(varint()));
        break;
      case 5:
        fields.numbers.emplace(field, little_endian(take(4)));
        break;
      default:
        ADD_FAILURE() << "wire type " << (key & 7U);
        return fields;
    }
  }
  return fields;
}

class TensorBoardTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::path(testing::TempDir()) /
              (std::string("lehr_tb_") + testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::remove_all(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  static std::vector<Fields> events(const std::filesystem::path& path) {
    std::ifstream file(path, std::ios::binary);
    const std::string content{std::istreambuf_iterator<char>(file), {}};
    std::vector<Fields> decoded;
    for (const auto& record : read_records(content)) {
      decoded.push_back(decode(record));
    }
    return decoded;
  }

  std::filesystem::path folder_;
};

TEST(ProtoMessage, EncodesTheExamplesOfTheSpecification) {
  EXPECT_EQ(ProtoMessage().varint(1, 150).encoded(), "\x08\x96\x01");
  EXPECT_EQ(ProtoMessage().bytes(2, "testing").encoded(), "\x12\x07testing");
  EXPECT_EQ(ProtoMessage().varint(1, ~0ULL).encoded().size(), 11U);
}

TEST_F(TensorBoardTest, WritesScalarsThatDecodeToTheSameValues) {
  TensorBoardWriter writer(folder_ / "tensorboard");
  EXPECT_THAT(writer.path().filename().string(), testing::StartsWith("events.out.tfevents."));
  writer.scalar(7, "loss", 2.5);
  writer.scalars(300, {{"lr", 8e-4}, {"grad_norm", 1.25}});
  const auto decoded = events(writer.path());
  ASSERT_EQ(decoded.size(), 3U);
  EXPECT_EQ(decoded[0].text(3), "brain.Event:2");
  EXPECT_GT(std::bit_cast<double>(decoded[0].number(1)), 1.6e9) << "seconds since 1970";

  EXPECT_EQ(decoded[1].number(2), 7U);
  const Fields value = decode(decode(decoded[1].text(5)).text(1));
  EXPECT_EQ(value.text(1), "loss");
  EXPECT_EQ(std::bit_cast<float>(static_cast<uint32_t>(value.number(2))), 2.5F);

  EXPECT_EQ(decoded[2].number(2), 300U);
  const Fields summary = decode(decoded[2].text(5));
  ASSERT_EQ(summary.bytes.count(1), 2U);
  const Fields first = decode(summary.bytes.lower_bound(1)->second);
  EXPECT_EQ(first.text(1), "lr");
  EXPECT_EQ(std::bit_cast<float>(static_cast<uint32_t>(first.number(2))), 8e-4F);
}

TEST_F(TensorBoardTest, WritesTextForTheTextPlugin) {
  TensorBoardWriter writer(folder_);
  writer.text(1, "config", "# Title");
  const Fields value = decode(decode(events(writer.path()).at(1).text(5)).text(1));
  EXPECT_EQ(value.text(1), "config");
  EXPECT_EQ(decode(decode(value.text(9)).text(1)).text(1), "text");
  const Fields tensor = decode(value.text(8));
  EXPECT_EQ(tensor.number(1), 7U);  // DT_STRING
  EXPECT_EQ(tensor.text(8), "# Title");
}

TEST_F(TensorBoardTest, ReadsTheSizeOfAnImageFromItsHeader) {
  const std::string png("\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\1\2\0\0\0\3\x08\x06\0\0\0", 29);
  TensorBoardWriter writer(folder_);
  writer.image(1, "samples", png);
  const Fields image = decode(decode(decode(events(writer.path()).at(1).text(5)).text(1)).text(4));
  EXPECT_EQ(image.number(1), 3U);
  EXPECT_EQ(image.number(2), 258U);
  EXPECT_EQ(image.number(3), 4U);
  EXPECT_EQ(image.text(4), png);
  EXPECT_THROW(writer.image(1, "samples", "GIF89a"), Error);
  EXPECT_THROW(writer.image(1, "samples", png.substr(0, 20)), Error);
}

TEST_F(TensorBoardTest, MarksTheStepAtWhichARunResumes) {
  const TensorBoardWriter first(folder_);
  const TensorBoardWriter second(folder_, 11);
  EXPECT_NE(first.path(), second.path());
  const auto decoded = events(second.path());
  ASSERT_EQ(decoded.size(), 2U);
  EXPECT_EQ(decoded[1].number(2), 11U);
  EXPECT_EQ(decode(decoded[1].text(7)).number(1), 1U);  // SessionLog.START
}

TEST_F(TensorBoardTest, ReportsAFolderThatCannotBeCreated) {
  std::ofstream(folder_.string()) << "a file";
  EXPECT_THROW(TensorBoardWriter writer(folder_ / "inside"), Error);
}

}  // namespace
}  // namespace lehr::metric
