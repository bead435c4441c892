// Embedding look-up and its dense gradient, compared with ATen's in float64.
#include "lehr/ops/embedding/embedding.h"

#include <gmock/gmock.h>
#include <torch/csrc/autograd/autograd.h>

#include "test/ops/against_reference.h"
#include "test/ops/kernels_test.h"

namespace lehr::ops::test {
namespace {

TEST(Embedding, EqualsItsDefinition) {
  everywhere([](at::ScalarType type, const std::string& where) {
    // Rows at both ends of the table and adjacent rows, some looked up often; sizes that are no multiple of a vector.
    for (const auto& [rows, size] : {std::pair<int64_t, int64_t>{7, 5}, {1000, 40}, {3000, 64}}) {
      for (const at::ScalarType id_type : {at::kLong, at::kInt}) {
        at::Tensor ids = at::randint(rows, {3, 50}, id_type);
        ids[0].narrow(0, 0, 20).fill_(rows - 1);
        ids[1].narrow(0, 3, 20).fill_(0);
        ids[2][7] = 1;
        expect_equal_to_definition(
            where,
            [&](const Tensors& in) -> Tensors { return {ops::embedding(in[0], ids)}; },
            [&](const Tensors& in) -> Tensors { return {at::embedding(in[0], ids.to(at::kLong))}; },
            {random_tensor({rows, size}, type)});
      }
    }
  });
}

TEST(Embedding, WritesEveryElementOfATableLargerThanTheCaches) {
  at::globalContext().setDeterministicAlgorithms(true, false);  // uninitialized tensors are filled with NaN
  for (const int64_t size : {517, 1024}) {                      // rows that are unaligned, and aligned to vectors
    const int64_t rows = 64'000'000 / 4 / size;
    const at::Tensor table = at::zeros({rows, size}).set_requires_grad(true);
    const at::Tensor ids = at::tensor({int64_t{3}, rows - 1, int64_t{3}, rows / 2});
    const at::Tensor dy = random_tensor({4, size}, at::kFloat);
    ops::embedding(table, ids).backward(dy);
    const at::Tensor expected = at::zeros({rows, size}).index_add_(0, ids, dy);
    EXPECT_TRUE(at::equal(table.grad(), expected)) << size;
  }
  at::globalContext().setDeterministicAlgorithms(false, false);
}

TEST(Embedding, SumsGradientsOfOneRowInFloat32) {
  const at::Tensor table = at::zeros({2, 32}, at::kBFloat16).set_requires_grad(true);
  const at::Tensor ids = at::ones({4096}, at::kLong);
  ops::embedding(table, ids).backward(at::full({4096, 32}, 0.125, at::kBFloat16));
  // In bfloat16 the sum would stop at 32, where 0.125 is half a unit in the last place.
  EXPECT_TRUE(at::equal(table.grad()[1], at::full({32}, 512.0, at::kBFloat16)));
  EXPECT_TRUE(at::equal(table.grad()[0], at::zeros({32}, at::kBFloat16)));
}

TEST(Embedding, WithoutIdsTheGradientIsZero) {
  const at::Tensor table = at::randn({5, 4}).set_requires_grad(true);
  const at::Tensor found = ops::embedding(table, at::empty({2, 0}, at::kLong));
  EXPECT_EQ(found.sizes(), (at::IntArrayRef{2, 0, 4}));
  found.sum().backward();
  EXPECT_TRUE(at::equal(table.grad(), at::zeros({5, 4})));
}

TEST(Embedding, RefusesInvalidTablesAndIds) {
  const at::Tensor table = at::randn({5, 4}).set_requires_grad(true);
  EXPECT_EQ(
      error_of([&] { ops::embedding(table, at::zeros({2})); }),
      "embedding: expected a floating table (V, H) and int32 or int64 ids, found Float 5x4 and Float");
  EXPECT_THAT(
      error_of([&] { ops::embedding(table, at::full({1}, 5, at::kLong)); }), testing::HasSubstr("out of range"));
  EXPECT_THAT(
      error_of([&] {
        const at::Tensor y = ops::embedding(table, at::zeros({2}, at::kLong));
        torch::autograd::grad({y.square().sum()}, {table}, {}, true, /*create_graph=*/true);
      }),
      testing::HasSubstr("embedding: its backward pass cannot be differentiated again"));
}

class KnownIds : public KernelsTest {};

TEST_P(KnownIds, ReplaceUnknownIdsByZeroAndNoteTheFirst) {
  const int64_t large = (int64_t{1} << 40) + 3;  // its lower 32 bits alone would be a known id
  struct Case {
    std::vector<int64_t> ids;
    std::vector<int64_t> note;
  };
  for (const auto& [ids, note] : std::vector<Case>{
           {{0, 6, 3}, {0, 0}}, {{}, {0, 0}}, {{1, 7, -1}, {2, 7}}, {{-100, 2}, {1, -100}}, {{2, large}, {2, large}}}) {
    for (const auto& type : {at::kLong, at::kInt}) {
      if (type == at::kInt && ids.size() == 2 && ids[1] == large) {
        continue;
      }
      const at::Tensor given = at::tensor(ids, at::kLong).to(type);
      at::Tensor found = there(at::zeros({2}, at::kLong));
      at::Tensor known;
      expect_kernels(true, [&] { known = known_ids(there(given), 7, found); });
      EXPECT_TRUE(at::equal(found.cpu(), at::tensor(note, at::kLong))) << found;
      const at::Tensor wide = given.to(at::kLong);
      EXPECT_TRUE(at::equal(known.cpu(), wide.masked_fill(wide.lt(0).logical_or(wide.ge(7)), 0)));
      const at::Tensor by_definition = at::zeros({2}, at::kLong);
      EXPECT_TRUE(at::equal(reference::known_ids(given, 7, by_definition), known.cpu()));
      EXPECT_TRUE(at::equal(by_definition, found.cpu()));
    }
  }
}

TEST_P(KnownIds, FindTheFirstUnknownIdInALongRowAndKeepTheFirstNote) {
  at::Tensor ids = at::randint(0, 50, {3, 1'100'000}, at::kLong);  // positions of more than 20 bits
  ids[2][1'000'007] = 50;
  ids[2][1'000'008] = 51;
  ids[1][4] = 52;
  ids[1][1030] = -3;  // of another thread, and later
  at::Tensor note = there(at::zeros({2}, at::kLong));
  const at::Tensor known = known_ids(there(ids), 50, note);
  EXPECT_EQ(known.sizes(), ids.sizes());
  EXPECT_TRUE(at::equal(note.cpu(), at::tensor({int64_t{1'100'005}, int64_t{52}})));
  known_ids(there(at::tensor({int64_t{99}})), 50, note);
  EXPECT_TRUE(at::equal(note.cpu(), at::tensor({int64_t{1'100'005}, int64_t{52}})));
  note.zero_();
  ids[1][4] = 1;
  ids[1][1030] = 1;
  known_ids(there(ids), 50, note);
  EXPECT_TRUE(at::equal(note.cpu(), at::tensor({int64_t{3'200'008}, int64_t{50}})));
}

TEST(KnownIdsOf, RefuseAnInvalidNote) {
  EXPECT_THAT(
      error_of([] { known_ids(at::zeros({3}, at::kLong), 5, at::zeros({2})); }),
      testing::HasSubstr("known_ids: expected a note of 2 int64 on the device of the ids, cpu"));
}

INSTANTIATE_TEST_SUITE_P(, KnownIds, testing::Bool(), place_name);

}  // namespace
}  // namespace lehr::ops::test
