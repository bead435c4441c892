// The GPU of a run: limits from the data sheet, and the attention kernels that are used.
#include "lehr/train/gpu_card.h"

#include <ATen/Context.h>
#include <gmock/gmock.h>

#include "lehr/train/attention_path.h"

namespace lehr::train {
namespace {

MachineLimits limits(const char* name, at::ScalarType dtype = at::kBFloat16) {
  return card_limits({.name = name}, dtype);
}

// Names as reported by drivers; figures of NVIDIA's data sheets, without sparsity.
TEST(CardLimits, KnowsTheDataSheetsOfTrainingCards) {
  EXPECT_DOUBLE_EQ(limits("NVIDIA A100-SXM4-40GB").flops, 312e12);
  EXPECT_DOUBLE_EQ(limits("NVIDIA A100-SXM4-40GB").bytes_per_second, 1.555e12);
  EXPECT_DOUBLE_EQ(limits("NVIDIA A100-SXM4-80GB").bytes_per_second, 2.039e12);
  EXPECT_DOUBLE_EQ(limits("NVIDIA H100 80GB HBM3").flops, 989e12);
  EXPECT_DOUBLE_EQ(limits("NVIDIA H100 80GB HBM3").bytes_per_second, 3.35e12);
  EXPECT_DOUBLE_EQ(limits("NVIDIA H100 PCIe").flops, 756e12);
  EXPECT_DOUBLE_EQ(limits("NVIDIA H200").flops, 989e12);
  EXPECT_DOUBLE_EQ(limits("NVIDIA H200").bytes_per_second, 4.8e12);
  EXPECT_DOUBLE_EQ(limits("NVIDIA H200 NVL").flops, 835e12);
  EXPECT_DOUBLE_EQ(limits("NVIDIA B200").flops, 2250e12);
}

TEST(CardLimits, KnowsThePeakOfEachDtype) {
  EXPECT_DOUBLE_EQ(limits("NVIDIA H200", at::kFloat).flops, 67e12);
  EXPECT_DOUBLE_EQ(limits("NVIDIA A100-SXM4-80GB", at::kFloat).flops, 19.5e12);
  EXPECT_DOUBLE_EQ(limits("NVIDIA B200", at::kDouble).flops, 37e12);
}

TEST(CardLimits, KnowsThePeakOfFloat8) {
  EXPECT_EQ(limits("NVIDIA A100-SXM4-80GB").float8_flops, 0);
  EXPECT_DOUBLE_EQ(limits("NVIDIA H100 80GB HBM3").float8_flops, 1979e12);
  EXPECT_DOUBLE_EQ(limits("NVIDIA H200 NVL").float8_flops, 1671e12);
  EXPECT_DOUBLE_EQ(limits("NVIDIA B200").float8_flops, 4500e12);
}

TEST(CardLimits, UsesTheDriversBandwidthForUnknownCardsAndNoPeak) {
  const GpuCard card{.name = "NVIDIA GH200 480GB", .memory_clock_khz = 2'619'000, .memory_bus_bits = 6144};
  EXPECT_EQ(card_limits(card, at::kBFloat16).flops, 0);
  EXPECT_DOUBLE_EQ(card_limits(card, at::kBFloat16).bytes_per_second, 2 * 2.619e9 * 6144 / 8);
  EXPECT_EQ(limits("NVIDIA GB200").flops, 0);
}

TEST(CardLimits, DescribesItself) {
  EXPECT_EQ(
      (GpuCard{
          .name = "NVIDIA H200",
          .memory_bytes = 150'000'000'000,
          .major = 9,
          .multiprocessors = 132,
          .driver = "580.159.03"}
           .describe()),
      "NVIDIA H200, 140 GiB, compute capability 9.0, 132 multiprocessors, driver 580.159.03");
  EXPECT_EQ(GpuCard{}.describe(), "a GPU without a name");
}

TEST(CardLimits, RefusesCardsBeforeFlashAttention) {
  EXPECT_EQ(
      why_unsupported({.name = "NVIDIA T4", .major = 7, .minor = 5}),
      "the GPU (NVIDIA T4) has compute capability 7.5, and Lehr needs 8.0 (A100) or more");
  EXPECT_EQ(why_unsupported({.name = "NVIDIA A100", .major = 8}), "");
  EXPECT_EQ(why_unsupported({.name = "NVIDIA B200", .major = 10}), "");
  EXPECT_EQ(why_unsupported({.name = "a driver that reports nothing"}), "");
}

TEST(CardLimits, HasNoCardForTheCpu) {
  EXPECT_FALSE(find_card(at::kCPU));
}

// The paths on the CPU: Lehr's own tiles; in float64, ATen's flash attention; and plain matmuls if that is turned off.
TEST(AttentionPath, NamesTheKernelThatRuns) {
  const AttentionShape shape{.heads = 4, .key_heads = 2, .head_size = 16};
  EXPECT_EQ(describe_attention(shape, at::kCPU, at::kFloat), "Lehr's kernel");
  EXPECT_EQ(describe_attention(shape, at::kCPU, at::kDouble), "flash attention; packed documents: Lehr's kernel");
  at::globalContext().setSDPUseFlash(false);
  const std::string without = describe_attention(shape, at::kCPU, at::kDouble);
  at::globalContext().setSDPUseFlash(true);
  EXPECT_EQ(without, "plain matmuls, which hold all scores; packed documents: Lehr's kernel");
}

}  // namespace
}  // namespace lehr::train
