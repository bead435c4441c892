// Stochastic rounding and AdamW with it by the CUDA kernels, as loops on the host, against those of the CPU.
#include <gtest/gtest.h>

#include "lehr/ops/cuda.h"
#include "lehr/optim/stochastic_rounding.h"
#include "test/ops/host_launch.h"

namespace lehr::optim {
namespace {

using ops::test::host_table;
using ops::test::HostLaunch;

struct Case {
  std::vector<int64_t> sizes;
  Placement placement;
};

// Whole, in one run that begins anywhere, in many short ones, over three dimensions.
std::vector<Case> cases() {
  return {
      {.sizes = {1000}, .placement = {}},
      {.sizes = {0}, .placement = {}},
      {.sizes = {7, 40}, .placement = {.shape = {90, 40}, .offset = {33, 0}}},
      {.sizes = {5, 33}, .placement = {.shape = {9, 99}, .offset = {2, 33}}},
      {.sizes = {3, 4, 150}, .placement = {.shape = {6, 8, 300}, .offset = {3, 2, 149}}},
      {.sizes = {3, 2, 50}, .placement = {.shape = {3, 4, 50}, .offset = {0, 1, 0}}}};
}

TEST(StochasticCudaKernels, RoundWithTheBitsOfTheCpu) {
  at::manual_seed(1);
  const RoundingNoise noise = rounding_noise(7, 3, "layer.weight");
  for (const auto& [sizes, placement] : cases()) {
    at::Tensor source = at::randn(sizes);
    if (source.numel() > 3) {
      source.view({-1})[1] = std::numeric_limits<float>::infinity();
      source.view({-1})[2] = std::nanf("");
      source.view({-1})[3] = std::numeric_limits<float>::max();
    }
    const at::Tensor on_cpu = at::empty(sizes, at::kBFloat16);
    copy_stochastically_(on_cpu, source, noise, placement);
    const at::Tensor by_kernel = at::empty(sizes, at::kBFloat16);
    const int64_t before = HostLaunch::launches();
    {
      const ops::cuda::TableScope scope(host_table(), at::kCPU);
      copy_stochastically_(by_kernel, source, noise, placement);
    }
    EXPECT_GT(HostLaunch::launches(), before);
    EXPECT_TRUE(at::equal(on_cpu.view(at::kShort), by_kernel.view(at::kShort)));
  }
}

TEST(StochasticCudaKernels, TakeTheStepsOfTheCpu) {
  at::manual_seed(1);
  for (const auto state : {at::kFloat, at::kBFloat16}) {
    for (const auto grad : {at::kFloat, at::kBFloat16}) {
      for (const auto& [sizes, placement] : cases()) {
        StochasticAdamWTensors by_cpu = {
            .value = at::randn(sizes).to(at::kBFloat16),
            .grad = at::randn(sizes).to(grad),
            .exp_avg = at::randn(sizes).to(state),
            .exp_avg_sq = at::rand(sizes).to(state),
            .placement = placement};
        StochasticAdamWTensors by_kernel = by_cpu;
        for (at::Tensor* tensor : {&by_kernel.value, &by_kernel.exp_avg, &by_kernel.exp_avg_sq}) {
          *tensor = tensor->clone();
        }
        const StochasticAdamWNumbers numbers{.lr = 0.01, .weight_decay = 0.1, .step = 3, .grad_divisor = 1.7};
        const StochasticAdamWNoise noise = {
            .value = rounding_noise(1, 3, "w"),
            .exp_avg = rounding_noise(1, 3, "m"),
            .exp_avg_sq = rounding_noise(1, 3, "v")};
        stochastic_adamw_(by_cpu, numbers, noise);
        const int64_t before = HostLaunch::launches();
        {
          const ops::cuda::TableScope scope(host_table(), at::kCPU);
          stochastic_adamw_(by_kernel, numbers, noise);
        }
        EXPECT_GT(HostLaunch::launches(), before);
        const auto differing = [](const at::Tensor& a, const at::Tensor& b) {
          return a.numel() == 0 ? 0.0 : (a != b).to(at::kDouble).mean().item<double>();
        };
        // The CPU's arithmetic keeps some products unrounded, which moves float32 by an ulp and so one bfloat16 in
        // 2^16 across the border that the noise draws.
        for (const auto& [a, b] :
             {std::pair(by_cpu.exp_avg, by_kernel.exp_avg), std::pair(by_cpu.exp_avg_sq, by_kernel.exp_avg_sq)}) {
          EXPECT_TRUE(at::allclose(a.to(at::kDouble), b.to(at::kDouble), state == at::kFloat ? 1e-6 : 1e-2, 1e-6));
          EXPECT_LE(state == at::kFloat ? 0 : differing(a, b), 2e-3);
        }
        EXPECT_LE(differing(by_cpu.value, by_kernel.value), 2e-3);
      }
    }
  }
}

TEST(StochasticCudaKernels, LeaveTritonsNoiseToTheDefinition) {
  const at::Tensor source = at::ones({300});
  const at::Tensor expected = at::empty({300}, at::kBFloat16);
  copy_stochastically_(expected, source, raw_rounding_noise(5));
  const at::Tensor target = at::empty({300}, at::kBFloat16);
  const ops::cuda::TableScope scope(host_table(), at::kCPU);
  copy_stochastically_(target, source, raw_rounding_noise(5));
  EXPECT_TRUE(at::equal(target, expected));
}

}  // namespace
}  // namespace lehr::optim
