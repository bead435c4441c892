// State maps applied to data: values equal torch's, only the required bytes are read, and memory is that of one group.
#include "lehr/state/map_stream.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <map>
#include <random>

#include "lehr/state/weights.h"
#include "test/state/support.h"

namespace lehr::state {
namespace {

using testing::bit_equal;
using testing::error_of;
using ::testing::HasSubstr;
using testing::TemporaryFolder;

at::Tensor numbers(std::vector<int64_t> shape) {
  return at::randn(shape);
}

std::map<std::string, at::Tensor> results_of(const StateMap& map, const NamedTensors& tensors) {
  const ValueSource source(tensors);
  std::map<std::string, at::Tensor> results;
  stream(BoundMap(map, source.specs()), source, [&](const MappedTensor& part) {
    EXPECT_TRUE(results.emplace(part.name, part.tensor).second) << part.name;
  });
  return results;
}

// Copies what it reads, and counts the bytes read, and the live bytes and their peak.
class CountingSource : public TensorSource {
 public:
  explicit CountingSource(const NamedTensors& tensors) : source_(tensors) {}
  at::Tensor read(const std::string& name, const Box& box) const override {
    const at::Tensor part = source_.read(name, box);
    const auto bytes = static_cast<int64_t>(part.nbytes());
    auto kept = std::make_shared<at::Tensor>(part.clone(at::MemoryFormat::Contiguous));
    read_ += bytes;
    live_ += bytes;
    peak_ = std::max(peak_, live_);
    return at::from_blob(
        kept->data_ptr(), kept->sizes(), [this, kept, bytes](void*) { live_ -= bytes; }, kept->options());
  }
  TensorSpecs specs() const { return source_.specs(); }
  int64_t read_bytes() const { return read_; }
  int64_t live_bytes() const { return live_; }
  int64_t peak_bytes() const { return peak_; }

 private:
  ValueSource source_;
  mutable int64_t read_ = 0;
  mutable int64_t live_ = 0;
  mutable int64_t peak_ = 0;
};

TEST(MapStream, EqualsTheOperatorsOfTorch) {
  at::manual_seed(1);
  const at::Tensor a = numbers({3, 4});
  const at::Tensor b = numbers({3, 4});
  const at::Tensor c = numbers({2, 3, 4});
  const at::Tensor d = numbers({3, 2});
  const NamedTensors tensors{{"a", a}, {"b", b}, {"c", c}, {"d", d}};
  auto one = [&](const StateMap& map) { return results_of(map, tensors); };
  for (int64_t dim = -3; dim < 3; ++dim) {
    EXPECT_TRUE(bit_equal(one(stack({"a", "b"}, "r", dim)).at("r"), at::stack({a, b}, dim))) << dim;
    EXPECT_TRUE(bit_equal(one(unsqueeze("a", "r", dim)).at("r"), a.unsqueeze(dim))) << dim;
    const auto parts = one(unstack(
        "c",
        c.size(dim) == 2   ? std::vector<std::string>{"0", "1"}
        : c.size(dim) == 3 ? std::vector<std::string>{"0", "1", "2"}
                           : std::vector<std::string>{"0", "1", "2", "3"},
        dim));
    EXPECT_TRUE(bit_equal(parts.at("1"), c.unbind(dim)[1])) << dim;
  }
  EXPECT_TRUE(bit_equal(one(concatenate({"a", "d"}, "r", 1, {4, 2})).at("r"), at::cat({a, d}, 1)));
  const auto pieces = one(split("c", {"0", "1", "2"}, -1, {1, 2, 1}));
  EXPECT_TRUE(bit_equal(pieces.at("0"), c.narrow(2, 0, 1)));
  EXPECT_TRUE(bit_equal(pieces.at("1"), c.narrow(2, 1, 2)));
  EXPECT_TRUE(bit_equal(pieces.at("2"), c.narrow(2, 3, 1)));
  EXPECT_TRUE(bit_equal(one(transpose("c", "r", 0, -1)).at("r"), c.transpose(0, -1)));
  EXPECT_TRUE(bit_equal(one(sequential({slice("c", "s", 0, {1, 2}, 2), squeeze("s", "r", -3)})).at("r"), c[1]));
  const auto tied = one(tie("a", {"0", "1"}));
  EXPECT_TRUE(bit_equal(tied.at("0"), a) && bit_equal(tied.at("1"), a));
}

TEST(MapStream, CopiesNothingIfTheOutputIsOneBoxOfOneInput) {
  const at::Tensor c = numbers({4, 3, 2});
  const auto parts = results_of(unstack("c", {"0", "1", "2", "3"}, 0), {{"c", c}});
  EXPECT_EQ(parts.at("2").const_data_ptr(), c[2].const_data_ptr());
  // A round trip through a stack that is never materialized.
  const StateMap round = sequential({stack({"a", "b"}, "s", 0), unstack("s", {"a", "b"}, 0)});
  const at::Tensor a = numbers({2});
  EXPECT_EQ(results_of(round, {{"a", a}, {"b", numbers({2})}}).at("a").const_data_ptr(), a.const_data_ptr());
}

// Random chains of operations and their inverses return every bit.
TEST(MapStream, RoundTripsChainsOfEveryOperation) {
  std::mt19937 random(7);
  at::manual_seed(2);
  auto below = [&](int64_t n) { return static_cast<int64_t>(random() % static_cast<uint64_t>(n)); };
  for (int round = 0; round < 200; ++round) {
    // All tensors have the same shape, so that any operation fits; each step uses the tensors of the step before.
    std::vector<int64_t> shape{2 + below(2), 2, 3};
    std::vector<std::string> names;
    NamedTensors tensors;
    for (int i = 0; i < 4; ++i) {
      names.push_back("in" + std::to_string(i));
      tensors.emplace_back(names.back(), numbers(shape));
    }
    std::vector<StateMap> maps;
    std::vector<std::string> done;
    for (int step = 0; step < 4; ++step) {
      const auto rank = static_cast<int64_t>(shape.size());
      const int64_t dim = below(rank);
      const std::string out = "v" + std::to_string(step);
      std::vector<StateMap> each;
      std::vector<std::string> next;
      auto per_tensor = [&](auto make) {
        for (size_t i = 0; i < names.size(); ++i) {
          next.push_back(out + "." + std::to_string(i));
          each.push_back(make(names[i], next.back()));
        }
      };
      switch (below(5)) {
        case 0:
          per_tensor([&](const auto& from, const auto& to) { return transpose(from, to, dim, rank - 1); });
          std::swap(shape[static_cast<size_t>(dim)], shape.back());
          break;
        case 1:
          per_tensor([&](const auto& from, const auto& to) { return unsqueeze(from, to, dim); });
          shape.insert(shape.begin() + dim, 1);
          break;
        case 2:
          next = {out};
          each = {stack(names, out, dim)};
          shape.insert(shape.begin() + dim, static_cast<int64_t>(names.size()));
          break;
        case 3: {
          const int64_t size = shape[static_cast<size_t>(dim)];
          next = {out};
          each = {concatenate(names, out, dim, std::vector<int64_t>(names.size(), size))};
          shape[static_cast<size_t>(dim)] = size * static_cast<int64_t>(names.size());
          break;
        }
        default: {
          const int64_t size = shape[static_cast<size_t>(dim)];
          if (size % 2 != 0) {
            continue;
          }
          for (size_t i = 0; i < names.size(); ++i) {
            const std::string a = fmt::format("{}.{}a", out, i);
            const std::string b = fmt::format("{}.{}b", out, i);
            each.push_back(split(names[i], {a, b}, dim, {size / 2, size / 2}));
            next.insert(next.end(), {a, b});
          }
          shape[static_cast<size_t>(dim)] = size / 2;
          break;
        }
      }
      maps.push_back(parallel(each));
      names = next;
    }
    const StateMap map = sequential(maps);
    const auto there = results_of(map, tensors);
    ASSERT_EQ(there.begin()->second.sizes(), at::IntArrayRef(shape));
    const auto back = results_of(map.inverse(), {there.begin(), there.end()});
    const auto round_trip = results_of(sequential({map, map.inverse()}), tensors);
    for (const auto& [name, tensor] : tensors) {
      ASSERT_TRUE(bit_equal(back.at(name), tensor)) << round << " " << name;
      ASSERT_TRUE(bit_equal(round_trip.at(name), tensor)) << round << " " << name;
    }
    // A box of an output is that box of the whole output.
    const ValueSource source(tensors);
    const BoundMap bound(map, source.specs());
    const auto& [name, whole] = *there.begin();
    Box box;
    for (const int64_t size : shape) {
      const int64_t begin = below(size);
      box.push_back({begin, begin + 1 + below(size - begin)});
    }
    ASSERT_TRUE(bit_equal(read_output(bound, source, name, box), narrow_to(whole, box))) << describe(box);
    at::Tensor target = at::empty(shape, at::kDouble);
    read_into(bound, source, name, target);
    ASSERT_TRUE(bit_equal(target, whole.to(at::kDouble)));
  }
}

// Four experts of 8 x 4 floats each, gate and up in one stored tensor.
struct Experts {
  NamedTensors stored{{"gate_up", at::arange(4 * 16 * 4, at::kFloat).view({4, 16, 4})}};
  StateMap map = split("gate_up", {"gate", "up"}, 1, {8, 8});
};

TEST(MapStream, ReadsOnlyTheBytesOfTheBox) {
  const Experts experts;
  const CountingSource source(experts.stored);
  const BoundMap bound(experts.map, source.specs());
  const at::Tensor up = experts.stored[0].second.narrow(1, 8, 8);
  EXPECT_TRUE(bit_equal(read_output(bound, source, "up", {{2, 3}, {0, 8}, {0, 4}}), up.narrow(0, 2, 1)));
  EXPECT_EQ(source.read_bytes(), 8 * 4 * 4) << "one expert of one projection";

  const NamedTensors rows{{"table", numbers({10, 3})}};
  const CountingSource table(rows);
  const BoundMap sliced(slice("table", "mine", 0, {4, 6}, 10), table.specs());
  EXPECT_TRUE(bit_equal(read_output(sliced, table, "mine", {{0, 2}, {0, 3}}), rows[0].second.narrow(0, 4, 2)));
  EXPECT_EQ(table.read_bytes(), 2 * 3 * 4);

  NamedTensors one_each;
  std::vector<std::string> names;
  for (int i = 0; i < 16; ++i) {
    names.push_back(fmt::format("expert{}", i));
    one_each.emplace_back(names.back(), numbers({8, 4}));
  }
  const CountingSource apart(one_each);
  const BoundMap stacked(stack(names, "all", 0), apart.specs());
  EXPECT_TRUE(bit_equal(
      read_output(stacked, apart, "all", {{6, 8}, {1, 2}, {0, 4}}),
      at::stack({one_each[6].second, one_each[7].second}).narrow(1, 1, 1)));
  EXPECT_EQ(apart.read_bytes(), 2 * 4 * 4) << "one row of two experts";
  EXPECT_THAT(
      error_of([&] {
        read_output(stacked, apart, "all", {{6, 17}, {0, 8}, {0, 4}});
      }),
      HasSubstr("all: [6:17, 0:8, 0:4] was requested, but the state map produces [0:16, 0:8, 0:4]"));
}

TEST(MapStream, TheInverseReadsATiedTensorOnce) {
  const NamedTensors values{{"in", at::ones({4})}, {"out", at::ones({4})}};
  const CountingSource source(values);
  const BoundMap back(tie("stored", {"in", "out"}).inverse(), source.specs());
  int outputs = 0;
  stream(back, source, [&](const MappedTensor& part) {
    EXPECT_EQ(part.name, "stored");
    ++outputs;
  });
  EXPECT_EQ(outputs, 1);
  EXPECT_EQ(source.read_bytes(), 4 * 4);
}

// 50 groups of 8 tensors of 4 KB: at most the inputs of one group are live, in both directions.
TEST(MapStream, HoldsAtMostOneGroup) {
  std::vector<StateMap> parts;
  NamedTensors tensors;
  for (int group = 0; group < 50; ++group) {
    std::vector<std::string> names;
    for (int i = 0; i < 8; ++i) {
      names.push_back(fmt::format("{}.{}", group, i));
      tensors.emplace_back(names.back(), at::full({32, 32}, group * 8 + i, at::kFloat));
    }
    parts.push_back(stack(names, std::to_string(group), 0));
  }
  const StateMap map = parallel(parts);
  constexpr int64_t kTensor = 32 * 32 * 4;
  const CountingSource source(tensors);
  NamedTensors whole;
  stream(BoundMap(map, source.specs()), source, [&](const MappedTensor& part) {
    EXPECT_EQ(source.live_bytes(), 0) << "what was read is copied into the output, and gone";
    whole.emplace_back(part.name, part.tensor.clone());
  });
  EXPECT_EQ(source.read_bytes(), 50 * 8 * kTensor);
  EXPECT_LE(source.peak_bytes(), kTensor) << "one input at a time";
  const CountingSource back(whole);
  stream(
      BoundMap(map.inverse(), back.specs()), back, [&](const MappedTensor&) { EXPECT_LE(back.live_bytes(), kTensor); });
  EXPECT_EQ(back.read_bytes(), 50 * 8 * kTensor) << "each byte once";
  EXPECT_EQ(back.live_bytes(), 0);
}

TEST(MapStream, WritesTheSameFilesAsFromTheWholeModel) {
  at::manual_seed(3);
  const Experts experts;
  const TemporaryFolder folder;
  const ValueSource source(experts.stored);
  const BoundMap bound(experts.map, source.specs());
  SafetensorsWriter writer(folder.path(), plan_files("model", bound.outputs(), 400));
  writer.create();
  stream(bound, source, file_sink(writer));
  writer.sync();
  const WeightReader reader(folder.path());
  EXPECT_EQ(reader.files().size(), 2) << "512 bytes each";
  EXPECT_TRUE(bit_equal(reader.tensor("up"), experts.stored[0].second.narrow(1, 8, 8)));

  // The inverse maps these files back to the stored layout.
  const WeightSource files(reader);
  const BoundMap back(experts.map.inverse(), specs_of(reader));
  EXPECT_TRUE(bit_equal(
      read_output(back, files, "gate_up", back.known(back.output_value("gate_up"))), experts.stored[0].second));
}

// Two ranks hold slices of one tensor, along any dimension; each writes its own slice, and the file is complete.
TEST(MapStream, RanksWriteTheirPartsOfOneTensor) {
  at::manual_seed(4);
  const at::Tensor whole = numbers({4, 6, 5});
  for (int64_t dim = 0; dim < 3; ++dim) {
    const TemporaryFolder folder;
    const FilePlan plan = plan_files("model", {{.name = "w", .dtype = DType::kBF16, .shape = {4, 6, 5}}});
    SafetensorsWriter(folder.path(), plan).create();
    const int64_t size = whole.size(dim);
    for (const Range range : {Range{0, 2}, Range{2, size}}) {
      const ValueSource source({{"mine", whole.narrow(dim, range.begin, range.size())}});
      SafetensorsWriter writer(folder.path(), plan);
      stream(BoundMap(slice("w", "mine", dim, range, size).inverse(), source.specs()), source, file_sink(writer));
      writer.sync();
    }
    EXPECT_TRUE(bit_equal(WeightReader(folder.path()).tensor("w"), whole.to(at::kBFloat16))) << dim;
  }
}

TEST(MapStream, RefusesATargetOfAnotherShape) {
  const ValueSource source({{"a", at::ones({2, 3})}});
  const BoundMap bound(rename("a", "b"), source.specs());
  EXPECT_THAT(
      error_of([&] {
        read_into(bound, source, "b", at::empty({3, 2}));
      }),
      HasSubstr("b: expected [3, 2], but the state map"));
  EXPECT_THAT(
      error_of([&] {
        read_into(bound, source, "c", at::empty({2, 3}));
      }),
      HasSubstr("c: the state map produces no tensor of this name"));
  EXPECT_THAT(
      error_of([] {
        ValueSource({{"a", at::ones({1})}, {"a", at::ones({1})}});
      }),
      HasSubstr("a: two tensors have this name"));
}

}  // namespace
}  // namespace lehr::state
