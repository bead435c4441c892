// Quantized weights: their values by the definition and as transformers reads them, regions, and files that do not fit.
#include "lehr/state/quantized.h"

#include <gmock/gmock.h>

#include <cmath>

#include "lehr/state/map_stream.h"
#include "lehr/state/safetensors_writer.h"
#include "lehr/state/weights.h"
#include "test/state/support.h"

namespace lehr::state {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using testing::error_of;
using testing::fixture;
using ::testing::HasSubstr;
using testing::TemporaryFolder;

at::Tensor bytes_of(const at::Tensor& tensor) {
  return tensor.clone(at::MemoryFormat::Contiguous).view(-1).view(at::kByte);
}

// The same bits, NaN and the sign of zero included.
bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  return a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes() && at::equal(bytes_of(a), bytes_of(b));
}

at::Tensor bytes(at::IntArrayRef shape, int64_t limit = 256) {
  return at::randint(limit, shape, at::TensorOptions().dtype(at::kByte));
}

// A reader of one file with these tensors.
WeightReader reader_of(const TemporaryFolder& folder, const NamedTensors& tensors) {
  save_safetensors(folder.path() / "model.safetensors", tensors);
  return WeightReader(folder.path());
}

// By OCP's definition: sign, two bits of exponent with bias 1, one bit of mantissa; subnormals without the hidden one.
double e2m1(int64_t nibble) {
  const int64_t exponent = nibble >> 1 & 3, mantissa = nibble & 1;
  const double size = exponent == 0
                          ? 0.5 * static_cast<double>(mantissa)
                          : std::ldexp(1 + 0.5 * static_cast<double>(mantissa), static_cast<int>(exponent) - 1);
  return (nibble & 8) != 0 ? -size : size;
}

TEST(Quantized, EqualsWhatTransformersReads) {
  const WeightReader stored(fixture("quantized"));
  const SafetensorsFile plain(fixture("quantized") / "plain.safetensors");
  EXPECT_THAT(stored.names(), ::testing::UnorderedElementsAre("experts.up", "q.weight", "q.bias"));
  EXPECT_TRUE(same_bits(stored.tensor("experts.up"), plain.tensor("experts.up")));
  const at::Tensor matrix = at::empty({128, 256});
  stored.copy_region("q.weight", {{0, 128}, {0, 256}}, matrix);
  EXPECT_TRUE(same_bits(matrix, plain.tensor("q.weight")));
  EXPECT_TRUE(same_bits(stored.tensor("q.weight"), plain.tensor("q.weight").to(at::kBFloat16))) << "one rounding";
  EXPECT_EQ(stored.quantized().at("experts.up").quantization, Quantization::mxfp4);
  EXPECT_EQ(stored.quantized().at("q.weight").quantization, Quantization::float8_blocks);
}

TEST(Quantized, Mxfp4EqualsItsDefinition) {
  at::manual_seed(2);
  const at::Tensor blocks = bytes({2, 5, 3, 16}), scales = bytes({2, 5, 3});
  scales[0][0][0].fill_(255);
  scales[1][2][1].fill_(0);
  const TemporaryFolder folder;
  const WeightReader reader = reader_of(folder, {{"w_blocks", blocks}, {"w_scales", scales}});
  EXPECT_THAT(reader.names(), ElementsAre("w"));
  EXPECT_FALSE(reader.has("w_blocks") || reader.has("w_scales"));
  EXPECT_THAT(reader.info("w").shape, ElementsAre(2, 96, 5));
  EXPECT_EQ(reader.info("w").dtype, DType::kBF16);
  const at::Tensor found = reader.tensor("w");
  at::Tensor wide = at::empty({2, 96, 5});
  reader.copy_region("w", whole_box({2, 96, 5}), wide);
  for (int64_t e = 0; e < 2; ++e) {
    for (int64_t column = 0; column < 96; ++column) {
      for (int64_t row = 0; row < 5; ++row) {
        const auto byte = blocks[e][row][column / 32][column % 32 / 2].item<int64_t>();
        const auto scale = scales[e][row][column / 32].item<int>();
        const double value = e2m1(column % 2 == 0 ? byte & 15 : byte >> 4) * std::ldexp(1.0, scale - 127);
        const double wanted = scale == 255 ? std::nan("") : at::scalar_tensor(value, at::kFloat).item<double>();
        for (const double got : {found[e][column][row].item<double>(), wide[e][column][row].item<double>()}) {
          EXPECT_TRUE(got == wanted || (std::isnan(got) && std::isnan(wanted))) << byte << " " << scale << " " << got;
          EXPECT_EQ(std::signbit(got), scale == 255 ? std::signbit(got) : std::signbit(wanted));
        }
      }
    }
  }
}

TEST(Quantized, Float8EqualsItsDefinitionWithBlocksThatAreCut) {
  at::manual_seed(3);
  const at::Tensor values = at::randn({130, 300}).to(at::kFloat8_e4m3fn), scales = at::rand({2, 3}) * 1e-2;
  const TemporaryFolder folder;
  const WeightReader reader = reader_of(folder, {{"a.weight", values}, {"a.weight_scale_inv", scales}});
  const at::Tensor rows = at::arange(130).div(128, "floor"), columns = at::arange(300).div(128, "floor");
  const at::Tensor wanted = values.to(at::kFloat) * scales.index_select(0, rows).index_select(1, columns);
  EXPECT_TRUE(same_bits(reader.tensor("a.weight"), wanted.to(at::kBFloat16)));
  for (const Box& box :
       {Box{{127, 129}, {0, 300}}, Box{{0, 130}, {255, 257}}, Box{{128, 130}, {130, 131}}, Box{{5, 5}, {0, 300}}}) {
    const at::Tensor part = at::empty(shape_of(box));
    reader.copy_region("a.weight", box, part);
    EXPECT_TRUE(same_bits(part, narrow_to(wanted, box))) << describe(box);
  }
  EXPECT_TRUE(same_bits(reader.rows("a.weight", 100, 130), wanted.narrow(0, 100, 30).to(at::kBFloat16)));
}

// Qwen3's checkpoints have scales in bfloat16.
TEST(Quantized, ScalesOfFloat8MayHaveSixteenBits) {
  at::manual_seed(4);
  const at::Tensor values = at::randn({130, 4}).to(at::kFloat8_e4m3fn);
  for (const at::ScalarType type : {at::kBFloat16, at::kHalf}) {
    const at::Tensor scales = at::rand({2, 1}).to(type);
    const TemporaryFolder folder;
    const WeightReader reader = reader_of(folder, {{"a.weight", values}, {"a.weight_scale_inv", scales}});
    const at::Tensor of_rows = scales.to(at::kFloat).index_select(0, at::arange(130).div(128, "floor"));
    const at::Tensor wanted = values.to(at::kFloat) * of_rows;
    EXPECT_TRUE(same_bits(reader.tensor("a.weight"), wanted.to(at::kBFloat16))) << type;
  }
}

// Ranks read their parts: each is that of the whole tensor.
TEST(Quantized, RegionsAreThoseOfTheWhole) {
  at::manual_seed(4);
  const TemporaryFolder folder;
  const WeightReader reader =
      reader_of(folder, {{"w_blocks", bytes({3, 7, 2, 16})}, {"w_scales", bytes({3, 7, 2}, 255)}});
  const WeightSource source(reader);
  const at::Tensor whole = reader.tensor("w");  // (3, 64, 7)
  for (const Box& box :
       {Box{{1, 3}, {0, 64}, {0, 7}},
        Box{{0, 3}, {31, 34}, {2, 5}},
        Box{{2, 3}, {33, 34}, {6, 7}},
        Box{{0, 2}, {1, 63}, {0, 1}},
        Box{{1, 1}, {0, 64}, {0, 7}}}) {
    EXPECT_TRUE(same_bits(source.read("w", box), narrow_to(whole, box))) << describe(box);
    for (const at::ScalarType type : {at::kBFloat16, at::kFloat, at::kDouble}) {
      const at::Tensor target = at::empty(shape_of(box), type);
      source.copy("w", box, target);
      EXPECT_TRUE(at::equal(target, narrow_to(whole, box).to(type))) << describe(box);
    }
  }
  EXPECT_TRUE(same_bits(reader.rows("w", 1, 2), whole.narrow(0, 1, 1)));
  const TensorSpecs specs = specs_of(reader);
  EXPECT_EQ(specs.size(), 1);
  EXPECT_EQ(specs.at("w"), (TensorSpec{.shape = {3, 64, 7}, .dtype = DType::kBF16}));
}

TEST(Quantized, MayBeInTwoFiles) {
  const TemporaryFolder folder;
  const at::Tensor blocks = bytes({1, 2, 1, 16}), scales = bytes({1, 2, 1}, 200);
  save_safetensors(folder.path() / "a.safetensors", {{"w_blocks", blocks}});
  save_safetensors(folder.path() / "b.safetensors", {{"w_scales", scales}});
  testing::write_bytes(
      folder.path() / "model.safetensors.index.json",
      R"({"weight_map": {"w_blocks": "a.safetensors", "w_scales": "b.safetensors"}})");
  const TemporaryFolder other;
  const WeightReader one = reader_of(other, {{"w_blocks", blocks}, {"w_scales", scales}});
  EXPECT_TRUE(same_bits(WeightReader(folder.path()).tensor("w"), one.tensor("w")));
}

TEST(Quantized, TensorsThatDoNotFitAreRefusedByFileAndName) {
  const auto refused = [](const NamedTensors& tensors, const std::string& part) {
    const TemporaryFolder folder;
    EXPECT_THAT(
        error_of([&] { reader_of(folder, tensors); }),
        AllOf(HasSubstr((folder.path() / "model.safetensors: ").string()), HasSubstr(part)));
  };
  const at::Tensor blocks = bytes({2, 5, 3, 16});
  refused({{"w_blocks", blocks}}, "w_blocks: there is no w_scales");
  refused(
      {{"w_blocks", blocks}, {"w_scales", bytes({2, 5, 4})}},
      "w_scales: expected U8 [2, 5, 3], one scale per block of w_blocks, found U8 [2, 5, 4]");
  refused({{"w_blocks", blocks}, {"w_scales", bytes({2, 15})}}, "w_scales: expected U8 [2, 5, 3]");
  refused({{"w_blocks", blocks}, {"w_scales", at::ones({2, 5, 3})}}, "found F32 [2, 5, 3]");
  refused(
      {{"w_blocks", bytes({2, 5, 3, 15})}, {"w_scales", bytes({2, 5, 3})}},
      "w_blocks: expected U8 [experts, rows, blocks, 16] (MXFP4), found U8 [2, 5, 3, 15]");
  refused({{"w_blocks", bytes({5, 3, 16})}, {"w_scales", bytes({5, 3})}}, "w_blocks: expected U8 [experts");
  refused({{"w_blocks", bytes({})}, {"w_scales", bytes({})}}, "w_blocks: expected U8 [experts");
  refused(
      {{"w_blocks", blocks}, {"w_scales", bytes({2, 5, 3})}, {"w", at::ones({2})}},
      "w_blocks: both it and w are there");

  const at::Tensor values = at::ones({130, 4}).to(at::kFloat8_e4m3fn);
  refused({{"a.weight_scale_inv", at::ones({2, 1})}}, "a.weight_scale_inv: there is no a.weight");
  refused(
      {{"a.weight", values}, {"a.weight_scale_inv", at::ones({1, 1})}},
      "a.weight_scale_inv: expected F32, BF16 or F16 [2, 1], one scale per block of 128 x 128 elements of a.weight, found F32 [1, "
      "1]");
  refused({{"a.weight", values}, {"a.weight_scale_inv", at::ones({})}}, "found F32 []");
  refused({{"a.weight", values}, {"a.weight_scale_inv", at::ones({2, 1}).to(at::kDouble)}}, "found F64 [2, 1]");
  refused(
      {{"a.weight", at::ones({130, 4})}, {"a.weight_scale_inv", at::ones({2, 1})}},
      "a.weight: expected a matrix of F8_E4M3");
  refused({{"a.weight", values[0]}, {"a.weight_scale_inv", at::ones({1})}}, "a.weight: expected a matrix of F8_E4M3");
}

TEST(Quantized, OtherTensorsOfThoseNamesStayAsTheyAre) {
  const TemporaryFolder folder;
  const WeightReader reader = reader_of(
      folder,
      {{"w_blocks", at::ones({2})}, {"w_scales", at::ones({3})}, {"a.weight", at::ones({4}).to(at::kFloat8_e4m3fn)}});
  EXPECT_TRUE(reader.quantized().empty());
  EXPECT_THAT(reader.names(), ::testing::UnorderedElementsAre("w_blocks", "w_scales", "a.weight"));
}

}  // namespace
}  // namespace lehr::state
