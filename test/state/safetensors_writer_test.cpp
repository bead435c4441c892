// Writing of safetensors: tensors read back bit for bit, in whatever pieces they were written.
#include "lehr/state/safetensors_writer.h"

#include <gmock/gmock.h>

#include <thread>

#include "lehr/base/crc32c.h"
#include "lehr/state/weights.h"
#include "test/state/support.h"

namespace lehr::state {
namespace {

using testing::bit_equal;
using ::testing::ElementsAre;
using testing::error_of;
using ::testing::HasSubstr;
using testing::TemporaryFolder;

// Random bits: every pattern of the dtype, including NaN with payload and subnormal numbers.
at::Tensor random_bits(at::ScalarType type, std::vector<int64_t> shape) {
  const at::Tensor tensor = at::empty(shape, type);
  if (type == at::kBool) {
    return at::randint(2, shape, at::kByte).to(at::kBool);
  }
  const at::Tensor noise = at::randint(256, {static_cast<int64_t>(tensor.nbytes())}, at::kByte);
  if (tensor.nbytes() > 0) {  // an empty tensor has no address, which must not be passed to memcpy
    std::memcpy(tensor.mutable_data_ptr(), noise.const_data_ptr(), tensor.nbytes());
  }
  return tensor;
}

TEST(SafetensorsWriter, RowsAreReadOnceOrMappedBitForBit) {
  const TemporaryFolder folder;
  const at::Tensor weight = random_bits(at::kFloat, {900, 1001});  // rows end inside blocks of the disk
  save_safetensors(folder.path() / "model.safetensors", {{"first", random_bits(at::kByte, {3})}, {"weight", weight}});
  for (const Reading reading : {Reading::again, Reading::once}) {
    const WeightReader reader(folder.path(), "model", reading);
    for (const auto& [begin, end] : std::vector<std::pair<int64_t, int64_t>>{{0, 900}, {13, 700}, {5, 6}, {900, 900}}) {
      const at::Tensor rows = at::zeros({end - begin, 1001});
      reader.copy_region("weight", {{begin, end}, {0, 1001}}, rows);
      EXPECT_TRUE(bit_equal(rows, weight.slice(0, begin, end))) << begin << " to " << end;
    }
    const at::Tensor turned = at::empty({1001, 500}).t();  // not the layout of the file
    reader.copy_region("weight", {{200, 700}, {0, 1001}}, turned);
    EXPECT_TRUE(bit_equal(turned.contiguous(), weight.slice(0, 200, 700)));
  }
}

TEST(SafetensorsWriter, RoundTripsEveryTypeBitForBit) {
  const TemporaryFolder folder;
  NamedTensors tensors;
  for (const at::ScalarType type :
       {at::kDouble,
        at::kFloat,
        at::kHalf,
        at::kBFloat16,
        at::kLong,
        at::kInt,
        at::kShort,
        at::kChar,
        at::kByte,
        at::kBool,
        at::kFloat8_e4m3fn,
        at::kFloat8_e5m2,
        at::kUInt16,
        at::kUInt32,
        at::kUInt64,
        at::kComplexFloat}) {
    const std::string name = c10::toString(type);
    tensors.emplace_back(name, random_bits(type, {3, 5, 7}));
    tensors.emplace_back(name + ".empty", random_bits(type, {0, 5}));
    tensors.emplace_back(name + ".scalar", random_bits(type, {}));
  }
  save_safetensors(folder.path() / "all.safetensors", tensors, {{"format", "pt"}, {"note", "\"quoted\"\n"}});
  const SafetensorsFile file(folder.path() / "all.safetensors");
  EXPECT_EQ(file.metadata().at("note"), "\"quoted\"\n");
  EXPECT_EQ(file.tensors().size(), tensors.size());
  for (const auto& [name, tensor] : tensors) {
    EXPECT_TRUE(bit_equal(file.tensor(name), tensor)) << name;
  }
  EXPECT_EQ(std::distance(fs::directory_iterator(folder.path()), {}), 1) << "no temporary file may stay";
}

TEST(SafetensorsWriter, StoresViewsAsTheyRead) {
  const TemporaryFolder folder;
  const at::Tensor base = at::randn({6, 8}).requires_grad_();
  const NamedTensors tensors = {
      {"transposed", base.t()},
      {"strided", base.slice(1, 0, 8, 3)},
      {"expanded", base[0].expand({4, 8})},
      {"conjugate", at::randn({3}, at::kComplexFloat).conj()}};
  save_safetensors(folder.path() / "views.safetensors", tensors);
  const SafetensorsFile file(folder.path() / "views.safetensors");
  for (const auto& [name, tensor] : tensors) {
    EXPECT_TRUE(file.tensor(name).equal(tensor)) << name;
  }
}

TEST(SafetensorsWriter, ConvertsFloatingPointTensorsToTheTypeOfThePlan) {
  const TemporaryFolder folder;
  const NamedTensors tensors = {{"w", at::randn({33})}, {"step", at::full({}, 7, at::kLong)}};
  SafetensorsWriter writer(folder.path(), plan_files("model", describe(tensors, at::kBFloat16)));
  writer.create();
  for (const auto& [name, tensor] : tensors) {
    writer.write(name, tensor);
  }
  writer.sync();
  const WeightReader reader(folder.path());
  EXPECT_TRUE(bit_equal(reader.tensor("w"), tensors[0].second.to(at::kBFloat16)));
  EXPECT_TRUE(bit_equal(reader.tensor("step"), tensors[1].second));
}

TEST(SafetensorsWriter, ByteRangesFromFourRanksEqualTheFilesOfOneWriter) {
  const TemporaryFolder whole;
  const TemporaryFolder pieces;
  NamedTensors tensors;
  for (int i = 0; i < 9; ++i) {
    tensors.emplace_back(fmt::format("w{}", i), random_bits(i % 2 == 0 ? at::kFloat : at::kBFloat16, {37 + i, 11}));
  }
  const FilePlan plan = plan_files("model", describe(tensors), 4000);
  ASSERT_GT(plan.files.size(), 2);
  SafetensorsWriter single(whole.path(), plan);
  single.create();
  for (const auto& [name, tensor] : tensors) {
    single.write(name, tensor);
  }
  single.sync();

  // Each rank has its own writer, as in separate processes, and the ranks write uneven pieces in turn.
  SafetensorsWriter(pieces.path(), plan).create();
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 4; ++rank) {
    ranks.emplace_back([&, rank] {
      SafetensorsWriter writer(pieces.path(), plan);
      for (const auto& [name, tensor] : tensors) {
        const std::span bytes(static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes());
        constexpr size_t kPiece = 61;
        for (size_t begin = static_cast<size_t>(rank) * kPiece; begin < bytes.size(); begin += 4 * kPiece) {
          const size_t size = std::min(kPiece, bytes.size() - begin);
          writer.write(name, static_cast<int64_t>(begin), bytes.subspan(begin, size));
        }
      }
      writer.sync();
    });
  }
  for (std::thread& rank : ranks) {
    rank.join();
  }
  for (const auto& entry : fs::directory_iterator(whole.path())) {
    EXPECT_TRUE(read_file(entry.path()) == read_file(pieces.path() / entry.path().filename())) << entry.path();
  }
}

// Each writes columns, so that its parts are interleaved with those of the other.
TEST(SafetensorsWriter, PartsOfTwoRanksHaveTheChecksumOfTheFile) {
  const TemporaryFolder folder;
  const NamedTensors tensors{{"a", random_bits(at::kFloat, {6, 10})}, {"b", random_bits(at::kBFloat16, {5, 3})}};
  const FilePlan plan = plan_files("model", describe(tensors), 4000);
  ASSERT_EQ(plan.files.size(), 1U);
  SafetensorsWriter first(folder.path(), plan);
  first.create();
  SafetensorsWriter second(folder.path(), plan);
  for (const auto& [name, tensor] : tensors) {
    const int64_t rows = tensor.size(0), columns = tensor.size(1);
    first.write(name, {{0, rows}, {0, 2}}, tensor.narrow(1, 0, 2));
    second.write(name, {{0, rows}, {2, columns}}, tensor.narrow(1, 2, columns - 2));
  }
  first.sync();
  second.sync();
  const std::string content = read_file(folder.path() / plan.files[0].name);
  const auto size = static_cast<int64_t>(content.size());
  const FileShare a = first.shares()[0], b = second.shares()[0];
  EXPECT_EQ(a.num_bytes + b.num_bytes, size);
  EXPECT_EQ(crc32c_from_linear(a.crc ^ b.crc, size), crc32c(std::as_bytes(std::span(content))));
}

TEST(SafetensorsWriter, RefusesTensorsThatAreNotInThePlan) {
  const TemporaryFolder folder;
  const NamedTensors tensors = {{"w", at::zeros({2, 3})}};
  SafetensorsWriter writer(folder.path(), plan_files("model", describe(tensors)));
  writer.create();
  const std::vector<std::byte> bytes(8);
  EXPECT_THAT(error_of([&] { writer.write("v", 0, bytes); }), HasSubstr("v: not among the 1 planned tensors"));
  EXPECT_THAT(
      error_of([&] { writer.write("w", 17, bytes); }), HasSubstr("w: 8 bytes at offset 17 do not fit into its 24"));
  EXPECT_THAT(error_of([&] { writer.write("w", -1, bytes); }), HasSubstr("at offset -1 do not fit"));
  EXPECT_THAT(error_of([&] { writer.write("w", INT64_MAX, bytes); }), HasSubstr("do not fit"));
  EXPECT_THAT(
      error_of([&] {
        writer.write("w", at::zeros({3, 2}));
      }),
      HasSubstr("w: expected shape [2, 3] as planned, found [3, 2]"));
  EXPECT_THAT(error_of([&] { describe({{"w", at::Tensor()}}); }), HasSubstr("w: there is no tensor"));
}

TEST(SafetensorsWriter, ReportsAMissingFolder) {
  const std::string message = error_of([] { save_safetensors("/nonexistent/a.safetensors", {{"w", at::zeros({1})}}); });
  EXPECT_THAT(message, HasSubstr("/nonexistent/.a.safetensors.saving: cannot be written"));
  EXPECT_THAT(message, HasSubstr("No such file or directory"));
}

}  // namespace
}  // namespace lehr::state
