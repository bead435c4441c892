// Reading a safetensors file: its tensors, and errors.
#include "lehr/state/safetensors.h"

#include <gmock/gmock.h>

#include <chrono>

#include "test/state/support.h"

namespace lehr::state {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using testing::error_of;
using ::testing::HasSubstr;
using testing::safetensors_bytes;
using ::testing::StartsWith;
using testing::TemporaryFolder;
using testing::write_bytes;

// The error of a file with this header and this many bytes of data.
std::string refusal(const std::string& json, size_t data_bytes) {
  const TemporaryFolder folder;
  write_bytes(folder.path() / "bad.safetensors", safetensors_bytes(json, std::string(data_bytes, 'x')));
  const std::string message = error_of([&] { SafetensorsFile(folder.path() / "bad.safetensors"); });
  EXPECT_THAT(message, StartsWith((folder.path() / "bad.safetensors").string()));
  return message;
}

template <class T>
std::string as_bytes(const std::vector<T>& values) {
  return std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
}

TEST(SafetensorsFile, ReadsTypesShapesMetadataAndValues) {
  const TemporaryFolder folder;
  const fs::path path = folder.path() / "a.safetensors";
  const std::string json =
      R"({"__metadata__":{"format":"pt","note":"\u00e9"},"w":{"dtype":"F32","shape":[2,2],"data_offsets":[8,24]},)"
      R"("ids":{"dtype":"I64","shape":[1],"data_offsets":[0,8]},"none":{"dtype":"BF16","shape":[0,7],)"
      R"("data_offsets":[24,24]},"scalar":{"dtype":"F32","shape":[],"data_offsets":[24,28]}}      )";
  write_bytes(path, safetensors_bytes(json, as_bytes<int64_t>({-3}) + as_bytes<float>({1, 2, 3, 4, 5})));
  const SafetensorsFile file(path);
  std::vector<std::string> names;
  for (const TensorInfo& tensor : file.tensors()) {
    names.push_back(tensor.name);
  }
  EXPECT_THAT(names, ElementsAre("ids", "w", "none", "scalar"));
  EXPECT_EQ(file.metadata().at("format"), "pt");
  EXPECT_EQ(file.metadata().at("note"), "\u00e9");
  EXPECT_EQ(file.info("w").dtype, DType::kF32);
  EXPECT_THAT(file.info("w").shape, ElementsAre(2, 2));
  EXPECT_EQ(file.info("w").begin, 8);
  EXPECT_EQ(file.tensor("ids").item<int64_t>(), -3);
  EXPECT_TRUE(file.tensor("w").equal(at::arange(1, 5, at::kFloat).view({2, 2})));
  EXPECT_EQ(file.tensor("scalar").item<float>(), 5);
  EXPECT_THAT(file.tensor("none").sizes(), ElementsAre(0, 7));
  EXPECT_TRUE(file.has("w"));
  EXPECT_FALSE(file.has("v"));
}

TEST(SafetensorsFile, ViewsTheMappingAndKeepsItAliveBeyondTheFile) {
  const TemporaryFolder folder;
  const fs::path path = folder.path() / "a.safetensors";
  write_bytes(
      path,
      safetensors_bytes(R"({"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}  )", as_bytes<float>({1.5, -2})));
  at::Tensor first;
  at::Tensor second;
  {
    const SafetensorsFile file(path);
    first = file.tensor("w");
    second = SafetensorsFile(file).tensor("w");
  }
  fs::remove(path);
  EXPECT_EQ(first.const_data_ptr(), second.const_data_ptr()) << "two reads shall be two views of one map";
  EXPECT_EQ(first[0].item<float>(), 1.5);
  EXPECT_EQ(second[1].item<float>(), -2);
}

TEST(SafetensorsFile, CopiesAnUnalignedTensor) {
  const TemporaryFolder folder;
  const fs::path path = folder.path() / "a.safetensors";
  for (size_t blanks = 0; blanks < 8; ++blanks) {
    const std::string json =
        R"({"flag":{"dtype":"BOOL","shape":[1],"data_offsets":[0,1]},"w":{"dtype":"F64","shape":[2],)"
        R"("data_offsets":[1,17]}})" +
        std::string(blanks, ' ');
    write_bytes(path, safetensors_bytes(json, std::string(1, '\1') + as_bytes<double>({0.1, -7})));
    const at::Tensor w = SafetensorsFile(path).tensor("w");
    EXPECT_EQ(reinterpret_cast<uintptr_t>(w.const_data_ptr()) % 8, 0);
    EXPECT_EQ(w[0].item<double>(), 0.1);
    EXPECT_EQ(w[1].item<double>(), -7);
  }
}

TEST(SafetensorsFile, ListsTypesThatATenLacksAndRefusesToReadThem) {
  const TemporaryFolder folder;
  const fs::path path = folder.path() / "a.safetensors";
  write_bytes(
      path,
      safetensors_bytes(
          R"({"q":{"dtype":"F4","shape":[4],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[1],"data_offsets":[2,3]}})",
          "abc"));
  const SafetensorsFile file(path);
  EXPECT_EQ(dtype_name(file.info("q").dtype), "F4");
  EXPECT_EQ(file.tensor("b").item<uint8_t>(), 'c');
  EXPECT_THAT(
      error_of([&] { file.tensor("q"); }), HasSubstr("a.safetensors: q: tensors of type F4 cannot be read; convert"));
}

TEST(SafetensorsFile, SuggestsTheNameOfAMissingTensor) {
  const SafetensorsFile file(testing::fixture("sharded/model-00001-of-00004.safetensors"));
  EXPECT_THAT(
      error_of([&] { file.tensor("model.embed_token.weight"); }),
      HasSubstr("model.embed_token.weight: no such tensor; did you mean model.embed_tokens.weight?"));
}

TEST(SafetensorsFile, RefusesAFileOfAnotherFormatAndATruncatedFile) {
  const TemporaryFolder folder;
  const fs::path path = folder.path() / "a.safetensors";
  const auto message = [&](const std::string& bytes) {
    write_bytes(path, bytes);
    return error_of([&] { SafetensorsFile{path}; });
  };
  EXPECT_THAT(message(""), HasSubstr("expected a safetensors file, found 0 bytes"));
  EXPECT_THAT(message("1234567"), HasSubstr("found 7 bytes"));
  EXPECT_THAT(message("PK\3\4 this is a zip"), HasSubstr("is it in another format?"));
  EXPECT_THAT(message(std::string(8, '\xff')), HasSubstr("header of 18446744073709551615 bytes"));
  EXPECT_THAT(message("version https://git-lfs.github.com/spec/v1\n"), HasSubstr("git lfs pull"));
  const std::string whole = safetensors_bytes(R"({"w":{"dtype":"U8","shape":[3],"data_offsets":[0,3]}})", "abc");
  EXPECT_THAT(
      message(whole.substr(0, 20)),
      HasSubstr("but only 12 follow its length; if the file is truncated, download it again"));
  EXPECT_THAT(message(whole.substr(0, whole.size() - 1)), HasSubstr("w: bytes 0 to 3 are outside the 2 bytes"));
  EXPECT_THAT(message(whole + "x"), HasSubstr("the tensors end at byte 3 of 4 bytes of data"));
  EXPECT_THAT(error_of([&] { SafetensorsFile{folder.path() / "none"}; }), HasSubstr("none: cannot be opened: No such"));
  EXPECT_THAT(error_of([&] { SafetensorsFile{folder.path()}; }), HasSubstr("expected a file, found a folder"));
}

TEST(SafetensorsFile, RefusesAnInvalidHeader) {
  EXPECT_THAT(refusal("", 0), HasSubstr("header: invalid JSON"));
  EXPECT_THAT(refusal("{", 0), HasSubstr("header: invalid JSON: parse error at line 1, column 2"));
  EXPECT_THAT(refusal("[]", 0), HasSubstr("expected a JSON object, found array"));
  EXPECT_THAT(refusal("{\"\xff\":1}", 0), HasSubstr("ill-formed UTF-8"));
  EXPECT_THAT(refusal(R"({"a":)" + std::string(100000, '['), 0), HasSubstr("nested more than 3 levels deep"));
  EXPECT_THAT(refusal(R"({"w":3})", 0), HasSubstr("w: expected a JSON object, found number"));
  EXPECT_THAT(
      refusal(R"({"w":{"dtype":"U8","shape":[1]}})", 1), HasSubstr("w: expected dtype, shape and data_offsets"));
  EXPECT_THAT(
      refusal(R"({"w":{"dtype":"U8","shape":[1],"offsets":[0,1]}})", 1),
      HasSubstr("w: expected an entry \"data_offsets\""));
  EXPECT_THAT(refusal(R"({"__metadata__":{"format":7}})", 0), HasSubstr("__metadata__: format: expected a string"));
  EXPECT_THAT(
      refusal(R"({"w":{"dtype":"F33","shape":[1],"data_offsets":[0,1]}})", 1),
      HasSubstr("w: dtype: \"F33\" is not a type of the format"));
  EXPECT_THAT(
      refusal(R"({"w":{"dtype":7,"shape":[1],"data_offsets":[0,1]}})", 1), HasSubstr("w: dtype: expected a string"));
  EXPECT_THAT(
      refusal(R"({"w":{"dtype":"U8","shape":[-1],"data_offsets":[0,1]}})", 1),
      HasSubstr("w: shape: expected whole numbers from 0, found -1"));
  EXPECT_THAT(
      refusal(R"({"w":{"dtype":"U8","shape":[1.0],"data_offsets":[0,1]}})", 1),
      HasSubstr("w: shape: expected whole numbers from 0, found 1.0"));
  EXPECT_THAT(refusal(R"({"w":{"dtype":"U8","shape":[1e999],"data_offsets":[0,1]}})", 1), HasSubstr("invalid JSON"));
  EXPECT_THAT(
      refusal(R"({"w":{"dtype":"U8","shape":[18446744073709551615],"data_offsets":[0,1]}})", 1),
      HasSubstr("w: shape: expected whole numbers"));
  EXPECT_THAT(
      refusal(R"({"w":{"dtype":"U8","shape":[4611686018427387904,4],"data_offsets":[0,0]}})", 0),
      HasSubstr("the number of elements overflows"));
  EXPECT_THAT(
      refusal(R"({"w":{"dtype":"F64","shape":[4611686018427387904],"data_offsets":[0,0]}})", 0),
      HasSubstr("the number of bytes overflows"));
  EXPECT_THAT(
      refusal(R"({"w":{"dtype":"U8","shape":[0,4611686018427387904,4],"data_offsets":[0,0]}})", 0),
      HasSubstr("the number of elements overflows"));
  EXPECT_THAT(
      refusal(R"({"w":{"dtype":"F4","shape":[3],"data_offsets":[0,2]}})", 2), HasSubstr("not a whole number of bytes"));
}

TEST(SafetensorsFile, RefusesRangesThatOverlapLeaveGapsOrDoNotMatchTheShape) {
  EXPECT_THAT(
      refusal(R"({"w":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", 4),
      HasSubstr("w: expected 8 bytes for F32 [2], found 4"));
  EXPECT_THAT(
      refusal(R"({"w":{"dtype":"U8","shape":[1],"data_offsets":[2,1]}})", 2), HasSubstr("w: bytes 2 to 1 are outside"));
  EXPECT_THAT(
      refusal(R"({"w":{"dtype":"U8","shape":[1],"data_offsets":[9,10]}})", 2), HasSubstr("are outside the 2 bytes"));
  EXPECT_THAT(
      refusal(
          R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})",
          3),
      HasSubstr("b: its bytes overlap those of a"));
  EXPECT_THAT(
      refusal(
          R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"b":{"dtype":"U8","shape":[1],"data_offsets":[2,3]}})",
          3),
      HasSubstr("b: 1 bytes before it belong to no tensor"));
  EXPECT_THAT(
      refusal(
          R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
          2),
      HasSubstr("header: \"a\" occurs twice"));
  EXPECT_THAT(
      refusal(R"({"a":{"dtype":"U8","shape":[1],"shape":[2],"data_offsets":[0,2]}})", 2),
      HasSubstr("header: \"shape\" occurs twice"));
}

TEST(SafetensorsFile, OpensAFileOfManyTensorsInLinearTime) {
  // Real models have thousands of experts. This takes 0.3 s; a comparison of each tensor with all others took 70 s.
  const TemporaryFolder folder;
  const fs::path path = folder.path() / "a.safetensors";
  constexpr int kTensors = 100'000;
  std::string json = "{";
  for (int i = 0; i < kTensors; ++i) {
    json += fmt::format(
        R"({}"layer.{}.weight":{{"dtype":"U8","shape":[1],"data_offsets":[{},{}]}})", i == 0 ? "" : ",", i, i, i + 1);
  }
  write_bytes(path, safetensors_bytes(json + "}", std::string(kTensors, 'x')));
  const auto start = std::chrono::steady_clock::now();
  const SafetensorsFile file(path);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));
  EXPECT_EQ(file.tensors().size(), kTensors);
}

// A generator with the same numbers on every platform, so that the cases are the same.
struct Lcg {
  uint64_t state;
  uint64_t below(uint64_t end) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    return (state >> 33) % end;
  }
};

// Reads the whole file; every failure must be a lehr::Error. Returns whether the file was accepted.
bool reads_cleanly(const fs::path& path) {
  try {
    const SafetensorsFile file(path);
    for (const TensorInfo& tensor : file.tensors()) {
      if (scalar_type(tensor.dtype).has_value()) {
        const at::Tensor value = file.tensor(tensor.name);
        // Touches every byte.
        volatile char sum = 0;
        const auto* bytes = static_cast<const char*>(value.const_data_ptr());
        for (size_t i = 0; i < value.nbytes(); ++i) {
          sum = static_cast<char>(sum + bytes[i]);
        }
      }
    }
    return true;
  } catch (const Error&) {
    return false;
  }
}

TEST(SafetensorsFile, SurvivesFiveThousandMutations) {
  const std::string json =
      R"({"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},)"
      R"("b.weight":{"dtype":"BF16","shape":[4],"data_offsets":[24,32]},"c":{"dtype":"I64","shape":[],)"
      R"("data_offsets":[32,40]},"d":{"dtype":"BOOL","shape":[3],"data_offsets":[40,43]}})";
  const std::string whole = safetensors_bytes(json, std::string(43, '\1'));
  const TemporaryFolder folder(testing::memory_folder());
  const fs::path path = folder.path() / "a.safetensors";
  write_bytes(path, whole);
  ASSERT_TRUE(reads_cleanly(path));
  Lcg random{.state = 7};
  const std::string interesting = "{}[]\",:0123456789-+.eE\\\0\xff \n";
  int accepted = 0;
  int refused = 0;
  for (int i = 0; i < 5000; ++i) {
    std::string bytes = whole;
    const auto place = [&] { return random.below(bytes.size()); };
    switch (i % 5) {
      case 0:  // truncated
        bytes.resize(place());
        break;
      case 1:  // one flipped bit
        bytes[place()] ^= static_cast<char>(1 << random.below(8));
        break;
      case 2:  // some characters with a meaning in JSON
        for (uint64_t k = 1 + random.below(4); k > 0; --k) {
          bytes[place()] = interesting[random.below(interesting.size())];
        }
        break;
      case 3: {  // a part of the header is duplicated; the length fits
        const size_t begin = random.below(json.size());
        const std::string part = json.substr(begin, 1 + random.below(30));
        std::string text = json;
        text.insert(random.below(text.size()), part);
        bytes = safetensors_bytes(text, std::string(43, '\1'));
        break;
      }
      default: {  // a part of the header is removed; the length fits
        std::string text = json;
        text.erase(random.below(text.size()), 1 + random.below(12));
        bytes = safetensors_bytes(text, std::string(43, '\1'));
        break;
      }
    }
    write_bytes(path, bytes);
    ++(reads_cleanly(path) ? accepted : refused);
  }
  // Damage to data or names alone cannot be detected.
  EXPECT_GT(accepted, 100);
  EXPECT_GT(refused, 3000);
}

}  // namespace
}  // namespace lehr::state
