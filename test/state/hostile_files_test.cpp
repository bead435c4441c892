// Checkpoint files made to read elsewhere, to run code, or to exhaust memory.
#include <gmock/gmock.h>
#include <sys/stat.h>

#include "lehr/state/integrity.h"
#include "lehr/state/pickle.h"
#include "lehr/state/safetensors_header.h"
#include "lehr/state/weights.h"
#include "test/state/support.h"

namespace lehr::state {
namespace {

using ::testing::AllOf;
using testing::error_of;
using ::testing::HasSubstr;
using testing::safetensors_bytes;
using testing::TemporaryFolder;
using testing::write_bytes;

const std::string kOne = safetensors_bytes(R"({"w":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", "x");

// torch.load runs code of such files: CVE-2025-32434, CVE-2024-3568, CVE-2026-1839.
TEST(HostileWeights, PicklesAreRefusedByName) {
  const TemporaryFolder folder;
  write_bytes(folder.path() / "pytorch_model.bin", "PK\x03\x04....archive/data.pkl");
  EXPECT_THAT(
      error_of([&] { WeightReader reader(folder.path()); }),
      AllOf(HasSubstr("found neither; pytorch_model.bin is a pickle"), HasSubstr("convert it to safetensors")));
  // Under a false name, and by its own.
  for (const std::string& bytes :
       {std::string("PK\x03\x04") + std::string(26, 'x') + "archive/data.pkl",
        std::string("\x80\x02\x8a\nl\xfc\x9c"
                    "F\xf9 j\xa8P\x19."),
        std::string("\x80\x04\x95....")}) {
    write_bytes(folder.path() / "model.safetensors", bytes);
    EXPECT_THAT(
        error_of([&] { WeightReader reader(folder.path()); }),
        HasSubstr("model.safetensors: is a pickle, which can run"));
  }
  // A header whose length has the same first bytes as a pickle.
  const std::string json = R"({"w":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})";
  for (const size_t length : {0x280, 0x380, 0x480, 0x580, 0x10280}) {
    write_bytes(
        folder.path() / "model.safetensors", safetensors_bytes(json + std::string(length - json.size(), ' '), "x"));
    EXPECT_EQ(WeightReader(folder.path()).names().size(), 1u) << length;
  }
  EXPECT_TRUE(is_pickle("adapter_model.bin", ""));
  EXPECT_TRUE(is_pickle("weights.pth", ""));
  EXPECT_FALSE(is_pickle("vocab.bin", "\x80\x09\x01"));
  EXPECT_FALSE(is_pickle("model.safetensors", kOne));
}

TEST(HostileWeights, LinksOutOfTheFolderAreNotFollowed) {
  const TemporaryFolder outside;
  write_bytes(outside.path() / "secret.safetensors", kOne);
  const TemporaryFolder folder;
  const fs::path single = folder.path() / "model.safetensors";
  fs::create_symlink(outside.path() / "secret.safetensors", single);
  EXPECT_THAT(error_of([&] { WeightReader reader(folder.path()); }), HasSubstr("is a link out of its folder"));
  EXPECT_NO_THROW(WeightReader reader(single)) << "a file that the user names may be a link";
  fs::remove(single);
  write_bytes(folder.path() / "model.safetensors.index.json", R"({"weight_map":{"w":"in/secret.safetensors"}})");
  fs::create_directory_symlink(outside.path(), folder.path() / "in");
  EXPECT_THAT(error_of([&] { WeightReader reader(folder.path()); }), HasSubstr("is a link out of its folder"));
}

TEST(HostileWeights, PipesDoNotBlock) {
  const TemporaryFolder folder;
  ASSERT_EQ(::mkfifo((folder.path() / "model.safetensors").c_str(), 0600), 0);
  EXPECT_THAT(error_of([&] { WeightReader reader(folder.path()); }), HasSubstr("expected a file, found a pipe"));
}

std::string refusal(const std::string& json, int64_t data_bytes = 0) {
  return error_of([&] { parse_safetensors_header(json, data_bytes, "m.safetensors"); });
}

TEST(HostileHeader, SizesAreCheckedBeforeMemoryIsAllocated) {
  EXPECT_THAT(
      refusal(R"({"w":{"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,0]}})"), HasSubstr("overflows"));
  EXPECT_THAT(
      refusal(R"({"w":{"dtype":"F32","shape":[0,4611686018427387904,4],"data_offsets":[0,0]}})"),
      HasSubstr("overflows"));
  EXPECT_THAT(
      refusal(R"({"w":{"dtype":"F64","shape":[2305843009213693951],"data_offsets":[0,8]}})", 8),
      HasSubstr("overflows"));
  EXPECT_THAT(
      refusal(R"({"w":{"dtype":"F32","shape":[1000000000000],"data_offsets":[0,4]}})", 4),
      HasSubstr("expected 4000000000000 bytes"));
  std::string dims = "1";
  for (int i = 0; i < 64; ++i) {
    dims += ",1";
  }
  EXPECT_THAT(
      refusal(R"({"w":{"dtype":"U8","shape":[)" + dims + R"(],"data_offsets":[0,1]}})", 1),
      HasSubstr("expected at most 64 dimensions, found 65"));
  EXPECT_THAT(
      refusal("{\"" + std::string(3000, 'n') + R"(":{"dtype":"U8","shape":[],"data_offsets":[0,1]}})", 1),
      HasSubstr("a name has 3000 bytes, at most 2048"));
}

// 100,000 tensors are many, but exist; a header of the format's full size could have two million.
TEST(HostileHeader, TheNumberOfTensorsIsLimited) {
  std::string json = "{";
  for (int i = 0; i <= 1'000'000; ++i) {
    json += fmt::format(R"({}"{}":{{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})", i > 0 ? "," : "", i);
  }
  EXPECT_THAT(refusal(json + "}"), HasSubstr("expected at most 1000000 entries"));
}

TEST(HostileHeader, OneEntryCannotHoldMillionsOfValues) {
  std::string json = R"({"w":{"dtype":"U8","data_offsets":[0,0],"shape":[0)";
  for (int i = 0; i < 1'000'001; ++i) {
    json += ",1";
  }
  EXPECT_THAT(refusal(json + "]}}"), HasSubstr("w: expected at most 1000000 values"));
}

TEST(HostileIntegrity, ChecksumsAreEightDigitsAndNamesAreFiles) {
  const auto read = [](const std::string& name, const std::string& crc, const std::string& bytes = "1") {
    return error_of([&] {
      parse_integrity(fmt::format(R"({{"files":{{"{}":{{"bytes":{},"crc32c":"{}"}}}}}})", name, bytes, crc), "i.json");
    });
  };
  for (const char* crc : {"-0000001", " 1234567", "0x123456", "1234567", "123456789", "1234567g", ""}) {
    EXPECT_THAT(read("a", crc), HasSubstr("i.json: a: expected a checksum of eight hexadecimal digits")) << crc;
  }
  for (const char* name : {"..", ".", "", "a/b", "/etc/passwd", "../a"}) {
    EXPECT_THAT(read(name, "12345678"), HasSubstr("expected the name of a file")) << name;
  }
  EXPECT_THAT(read("a", "12345678", "-1"), HasSubstr("expected a size"));
  EXPECT_THAT(read("a", "12345678", "1e300"), HasSubstr("expected a size in whole bytes")) << "found by fuzzing";
  EXPECT_EQ(parse_integrity(R"({"files":{"a":{"bytes":3,"crc32c":"0000ABcd"}}})", "i.json").at("a").crc32c, 0xABCDu);
}

}  // namespace
}  // namespace lehr::state
