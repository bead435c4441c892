// Looking up rows of a table, and the dense gradient of it, against ATen's in float64.
#include "lehr/ops/embedding.h"

#include <gmock/gmock.h>
#include <torch/csrc/autograd/autograd.h>

#include "test/ops/against_reference.h"

namespace lehr::ops::test {
namespace {

TEST(Embedding, EqualsItsDefinition) {
  everywhere([](at::ScalarType type, const std::string& where) {
    // Rows at both ends of the table and next to each other, some looked up often; sizes that fill no vector evenly.
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

TEST(Embedding, WritesAllOfATableThatNoCacheHolds) {
  at::globalContext().setDeterministicAlgorithms(true, false);  // fresh tensors are NaN
  for (const int64_t size : {517, 1024}) {                      // rows that begin anywhere, and at vectors
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

TEST(Embedding, AddsManyLooksAtOneRowInFloat32) {
  const at::Tensor table = at::zeros({2, 32}, at::kBFloat16).set_requires_grad(true);
  const at::Tensor ids = at::ones({4096}, at::kLong);
  ops::embedding(table, ids).backward(at::full({4096, 32}, 0.125, at::kBFloat16));
  // In bfloat16 the sum would stop at 32, where 0.125 is half of the last place.
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

TEST(Embedding, RefusesWhatItCannotLookUp) {
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

}  // namespace
}  // namespace lehr::ops::test
