// File plans: the same files, borders and bytes as those of Hugging Face's libraries.
#include "lehr/state/file_plan.h"

#include <gmock/gmock.h>

#include "lehr/state/safetensors_writer.h"
#include "lehr/state/weights.h"
#include "test/state/support.h"

namespace lehr::state {
namespace {

using ::testing::ElementsAre;
using testing::error_of;
using testing::fixture;
using ::testing::HasSubstr;
using testing::TemporaryFolder;

TensorInfo bytes(const std::string& name, int64_t size) {
  return {.name = name, .dtype = DType::kU8, .shape = {size}};
}

// The tensors of each file, as "a b|c".
std::string summary(const FilePlan& plan) {
  std::string text;
  for (const PlannedFile& file : plan.files) {
    text += text.empty() ? "" : "|";
    for (size_t i = 0; i < file.tensors.size(); ++i) {
      text += (i == 0 ? "" : " ") + file.tensors[i].name;
    }
  }
  return text;
}

// The names in the order in which transformers iterates over a Qwen3.
std::vector<std::string> qwen3_names(int layers) {
  std::vector<std::string> names = {"model.embed_tokens.weight"};
  for (int layer = 0; layer < layers; ++layer) {
    for (const char* part :
         {"self_attn.q_proj",
          "self_attn.k_proj",
          "self_attn.v_proj",
          "self_attn.o_proj",
          "self_attn.q_norm",
          "self_attn.k_norm",
          "mlp.gate_proj",
          "mlp.up_proj",
          "mlp.down_proj",
          "input_layernorm",
          "post_attention_layernorm"}) {
      names.push_back(fmt::format("model.layers.{}.{}.weight", layer, part));
    }
  }
  names.insert(names.end(), {"model.norm.weight", "lm_head.weight"});
  return names;
}

TEST(FilePlan, WritesTheSameBytesAsTransformers) {
  const WeightReader reader(fixture("sharded"));
  NamedTensors tensors;
  for (const std::string& name : qwen3_names(4)) {
    tensors.emplace_back(name, reader.tensor(name));
  }
  ASSERT_EQ(tensors.size(), reader.names().size());
  const TemporaryFolder folder;
  SafetensorsWriter writer(folder.path(), plan_files("model", describe(tensors), 30'000));
  writer.create();
  for (const auto& [name, tensor] : tensors) {
    writer.write(name, tensor);
  }
  writer.sync();
  size_t files = 0;
  for (const auto& entry : fs::directory_iterator(fixture("sharded"))) {
    EXPECT_TRUE(read_file(entry.path()) == read_file(folder.path() / entry.path().filename()))
        << entry.path().filename() << " differs";
    ++files;
  }
  EXPECT_EQ(files, 5);
}

TEST(FilePlan, FillsShardsInTheOrderOfTheList) {
  const auto plan = [](int64_t max) {
    return summary(plan_files("m", {bytes("d", 4), bytes("c", 4), bytes("b", 2), bytes("a", 5)}, max));
  };
  EXPECT_EQ(plan(15), "a b c d");
  EXPECT_EQ(plan(14), "b c d|a");
  EXPECT_EQ(plan(10), "b c d|a");
  EXPECT_EQ(plan(9), "c d|a b");
  EXPECT_EQ(plan(5), "d|c|b|a");
  EXPECT_EQ(plan(4), "d|c|a|b")
      << "the file that was begun (b) goes on behind a tensor with its own, as in huggingface_hub";
}

TEST(FilePlan, NamesFilesLikeTheHub) {
  const FilePlan one = plan_files("optimizer", {bytes("a", 1)});
  EXPECT_EQ(one.files[0].name, "optimizer.safetensors");
  EXPECT_EQ(one.index_name, "");
  const FilePlan two = plan_files("optimizer", {bytes("b", 1), bytes("a", 1)}, 1);
  EXPECT_EQ(two.files[0].name, "optimizer-00001-of-00002.safetensors");
  EXPECT_EQ(two.files[1].name, "optimizer-00002-of-00002.safetensors");
  EXPECT_EQ(two.index_name, "optimizer.safetensors.index.json");
  EXPECT_EQ(two.index, R"({
  "metadata": {
    "total_parameters": 2,
    "total_size": 2
  },
  "weight_map": {
    "a": "optimizer-00002-of-00002.safetensors",
    "b": "optimizer-00001-of-00002.safetensors"
  }
}
)");
}

TEST(FilePlan, AlignsEveryTensorForItsType) {
  const FilePlan plan = plan_files(
      "model",
      {{.name = "flags", .dtype = DType::kBool, .shape = {3}},
       {.name = "half", .dtype = DType::kBF16, .shape = {5}},
       {.name = "long", .dtype = DType::kI64, .shape = {1}},
       {.name = "float", .dtype = DType::kF32, .shape = {3, 1}}});
  EXPECT_EQ(summary(plan), "long float half flags");
  EXPECT_EQ(plan.total_bytes, 3 + 10 + 8 + 12);
  for (const auto& [name, place] : plan.places) {
    EXPECT_EQ(place.offset % std::max<int64_t>(dtype_bits(place.dtype) / 8, 1), 0) << name;
  }
  EXPECT_EQ(plan.files[0].header.size() % 8, 0);
  EXPECT_EQ(plan.at("flags").offset, static_cast<int64_t>(plan.files[0].header.size()) + 8 + 12 + 10);
}

TEST(FilePlan, IsDeterministic) {
  std::vector<TensorInfo> tensors;
  for (int i = 0; i < 100; ++i) {
    tensors.push_back(bytes(fmt::format("layer.{}", i), 1 + i * 37 % 50));
  }
  const FilePlan a = plan_files("model", tensors, 200);
  const FilePlan b = plan_files("model", tensors, 200);
  EXPECT_EQ(a.index, b.index);
  for (size_t i = 0; i < a.files.size(); ++i) {
    EXPECT_EQ(a.files[i].header, b.files[i].header);
  }
}

TEST(FilePlan, RefusesInvalidTensors) {
  EXPECT_THAT(
      error_of([] {
        plan_files("m", {bytes("a", 1), bytes("a", 2)});
      }),
      HasSubstr("m.safetensors: a: planned to be written twice"));
  EXPECT_THAT(
      error_of([] { plan_files("m", {bytes("__metadata__", 1)}); }), HasSubstr("the format reserves this name"));
  EXPECT_THAT(error_of([] { plan_files("m", {bytes("a", -1)}); }), HasSubstr("m.safetensors: a: shape [-1]"));
  EXPECT_THAT(error_of([] { plan_files("m", {}, 0); }), HasSubstr("max_shard_bytes: expected more than 0, found 0"));
  EXPECT_THAT(error_of([] { plan_files("m", {}).at("a"); }), HasSubstr("a: not among the 0 planned tensors"));
}

TEST(FilePlan, AcceptsFilesByNameAndIndexesThem) {
  const FilePlan plan = plan_named_files(
      "model",
      {{.name = "parts/a.safetensors", .tensors = {bytes("b", 3), bytes("a", 2)}},
       {.name = "parts/c.safetensors", .tensors = {bytes("c", 4)}}});
  EXPECT_EQ(summary(plan), "a b|c");
  EXPECT_EQ(plan.index, R"({
  "metadata": {
    "total_parameters": 9,
    "total_size": 9
  },
  "weight_map": {
    "a": "parts/a.safetensors",
    "b": "parts/a.safetensors",
    "c": "parts/c.safetensors"
  }
}
)");
  const TemporaryFolder folder;
  SafetensorsWriter writer(folder.path(), plan);
  writer.create();
  for (const auto& [name, place] : plan.places) {
    writer.write(name, at::full({place.num_bytes}, name[0], at::kByte));
  }
  writer.sync();
  const WeightReader reader(folder.path());
  EXPECT_THAT(reader.names(), ElementsAre("a", "b", "c"));
  EXPECT_TRUE(at::equal(reader.tensor("c"), at::full({4}, 'c', at::kByte)));
  EXPECT_EQ(
      plan_named_files("model", {{.name = "one.safetensors", .tensors = {bytes("a", 1)}}}).index_name,
      "model.safetensors.index.json");
  EXPECT_THAT(
      error_of([] {
        plan_named_files("m", {{.name = "x", .tensors = {bytes("a", 1)}}, {.name = "y", .tensors = {bytes("a", 1)}}});
      }),
      HasSubstr("m.safetensors: a: planned to be written twice"));
}

}  // namespace
}  // namespace lehr::state
