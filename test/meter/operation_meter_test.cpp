#include "lehr/meter/operation_meter.h"

#include <gtest/gtest.h>

#include "lehr/base/error.h"

namespace lehr {
namespace {

class OperationsOn : public ::testing::TestWithParam<at::DeviceType> {
 protected:
  at::Tensor made(at::IntArrayRef shape) const {
    return at::empty(shape, at::TensorOptions().device(GetParam()).dtype(at::kDouble)).zero_();
  }
};
INSTANTIATE_TEST_SUITE_P(Devices, OperationsOn, ::testing::Values(at::kMeta, at::kCPU), [](const auto& device) {
  return c10::DeviceTypeName(device.param, true);
});

TEST_P(OperationsOn, MatmulsAreTwoFlopsPerTerm) {
  const at::Tensor a = made({3, 5}), b = made({5, 7}), stack = made({2, 3, 5}), wide = made({2, 4, 3, 5});
  OperationMeter meter;
  a.mm(b);
  EXPECT_EQ(meter.counts().matmul_flops, 2 * 3 * 5 * 7);
  meter.reset();
  stack.bmm(b.expand({2, 5, 7}));
  EXPECT_EQ(meter.counts().matmul_flops, 2 * 2 * 3 * 5 * 7);
  meter.reset();
  at::linear(wide, b.t(), made({7}));
  EXPECT_EQ(meter.counts().matmul_flops, 2 * 2 * 4 * 3 * 5 * 7);
  meter.reset();
  at::einsum("bij,jk->bik", {stack, b});
  EXPECT_EQ(meter.counts().matmul_flops, 2 * 2 * 3 * 5 * 7);
}

TEST_P(OperationsOn, BackwardOfAMatmulIsTwoMatmuls) {
  const at::Tensor a = made({3, 5}).requires_grad_(), b = made({5, 7}).requires_grad_();
  OperationMeter meter;
  a.mm(b).sum().backward();
  EXPECT_EQ(meter.counts().matmul_flops, 3 * 2 * 3 * 5 * 7);
}

TEST_P(OperationsOn, PointwiseOperatorsCountEachReadAndWriteOnce) {
  const at::Tensor a = made({4, 6}), b = made({4, 6}), trained = made({4, 6}).requires_grad_();
  OperationMeter meter;
  at::add(a, b);
  EXPECT_EQ(meter.counts().pointwise_bytes, 3 * 24 * 8);
  meter.reset();
  a.t().view({6, 4}).narrow(0, 1, 2).detach();
  trained.detach();
  b.to(at::kDouble);
  EXPECT_EQ(meter.counts().pointwise_bytes, 0);
  meter.reset();
  a.t().contiguous();  // a clone, which is a copy
  EXPECT_EQ(meter.counts().pointwise_bytes, 2 * 24 * 8);
  meter.reset();
  b.to(at::kFloat);
  EXPECT_EQ(meter.counts().pointwise_bytes, 24 * (8 + 4));
  EXPECT_EQ(meter.counts().flops(), 0);
}

TEST_P(OperationsOn, RecomputedWorkIsAlsoCountedSeparately) {
  const at::Tensor a = made({2, 2});
  OperationMeter meter;
  a.mm(a);
  {
    const Recomputed again;
    a.mm(a);
    report_attention(5);
  }
  EXPECT_EQ(meter.counts().matmul_flops, 32);
  EXPECT_EQ(meter.counts().attention_flops, 5);
  EXPECT_EQ(meter.counts().recomputed_flops, 21);
}

TEST(OperationMeter, DoesNotNest) {
  const OperationMeter meter;
  EXPECT_THROW(OperationMeter another, Error);
}

}  // namespace
}  // namespace lehr
