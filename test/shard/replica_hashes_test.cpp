#include "lehr/shard/replica_hashes.h"

#include <gtest/gtest.h>

namespace lehr::shard {
namespace {

int64_t hash(const at::Tensor& tensor) {
  return hash_of_bits(tensor).item<int64_t>();
}

// Changes one bit of an element of a contiguous tensor.
void flip(const at::Tensor& tensor, int64_t bit) {
  auto* const bytes = static_cast<unsigned char*>(tensor.mutable_data_ptr());
  bytes[bit / 8] = static_cast<unsigned char>(bytes[bit / 8] ^ (1U << (bit % 8)));
}

TEST(HashOfBits, ChangesWithEveryBitOfEveryType) {
  for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kBFloat16, at::kChar}) {
    const at::Tensor tensor = at::arange(9, at::kDouble).to(type);
    const int64_t before = hash(tensor);
    const int64_t bits = static_cast<int64_t>(tensor.nbytes()) * 8;
    for (int64_t bit = 0; bit < bits; ++bit) {
      flip(tensor, bit);
      EXPECT_NE(hash(tensor), before) << type << " bit " << bit;
      flip(tensor, bit);
    }
    EXPECT_EQ(hash(tensor), before);
  }
}

// A sum of products alone would lose pairs of highest bits.
TEST(HashOfBits, ChangesWithPairsOfHighestBits) {
  const at::Tensor tensor = at::ones({64}, at::kDouble);
  const int64_t before = hash(tensor);
  for (int64_t other = 1; other < 64; ++other) {
    flip(tensor, 63);
    flip(tensor, other * 64 + 63);
    EXPECT_NE(hash(tensor), before) << other;
    flip(tensor, 63);
    flip(tensor, other * 64 + 63);
  }
}

TEST(HashOfBits, DependsOnTheOrderAndNotOnStrides) {
  const at::Tensor tensor = at::arange(6, at::kFloat).view({2, 3});
  EXPECT_NE(hash(tensor), hash(tensor.t()));
  EXPECT_EQ(hash(tensor.t()), hash(tensor.t().contiguous()));
  EXPECT_NE(hash(at::zeros({2})), hash(-at::zeros({2})));
  EXPECT_EQ(hash(at::zeros({0})), 0);
}

TEST(HashOfBits, SeesTheEndOfALargeTensor) {
  const at::Tensor tensor = at::zeros({(1 << 20) + 3}, at::kFloat);
  const int64_t before = hash(tensor);
  flip(tensor, static_cast<int64_t>(tensor.nbytes()) * 8 - 1);
  EXPECT_NE(hash(tensor), before);
}

}  // namespace
}  // namespace lehr::shard
