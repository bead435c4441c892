// AdamW's kernel compared with ATen's fused one, bit for bit, on every instruction set.
#include "lehr/optim/adamw_cpu.h"

#include <ATen/Version.h>
#include <ATen/ops/_fused_adamw.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lehr/meter/operator_profile.h"
#include "lehr/optim/adamw.h"
#include "test/ops/against_reference.h"
#include "test/optim/adamw_tensors.h"

namespace lehr::optim {
namespace {
using ops::Arch;
using ops::ArchScope;
using testing_support::random_tensors;

const AdamWNumbers kNumbers{.lr = 1e-3, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1};

AdamWTensors copy_of(const AdamWTensors& t) {
  return {t.value.clone(), t.grad.clone(), t.exp_avg.clone(), t.exp_avg_sq.clone(), t.step};
}

void step_in_aten(const AdamWTensors& t, const AdamWNumbers& n) {
  std::optional<at::Tensor> scale;
  if (n.grad_divisor != 1) {
    scale = at::full({}, n.grad_divisor, at::kFloat);
  }
  at::_fused_adamw_(
      {t.value},
      {t.grad},
      {t.exp_avg},
      {t.exp_avg_sq},
      {},
      {at::full({}, t.step, at::kFloat)},
      n.lr,
      n.beta1,
      n.beta2,
      n.weight_decay,
      n.eps,
      /*amsgrad=*/false,
      /*maximize=*/false,
      scale);
}

bool same(const AdamWTensors& a, const AdamWTensors& b) {
  return at::equal(a.value, b.value) && at::equal(a.exp_avg, b.exp_avg) && at::equal(a.exp_avg_sq, b.exp_avg_sq);
}

// The largest deviation of value and moments, in ulps of float32 of the largest.
double ulps(const AdamWTensors& a, const AdamWTensors& b) {
  return std::max(
             {ops::test::worst_error(a.value, b.value),
              ops::test::worst_error(a.exp_avg, b.exp_avg),
              ops::test::worst_error(a.exp_avg_sq, b.exp_avg_sq)}) /
         std::numeric_limits<float>::epsilon();
}

std::vector<AdamWNumbers> settings() {
  std::vector<AdamWNumbers> list(5, kNumbers);
  list[1].grad_divisor = 3.7F;
  list[2].weight_decay = 0;
  list[3].beta1 = 0.3;  // exp_avg is interpolated from the gradient on
  list[4].beta1 = 0.3;
  list[4].grad_divisor = 0.6F;
  return list;
}

TEST(AdamWOnCpu, HasTheBitsOfATen) {
  // ATen's threads compute whole vectors of such a size. Without fused multiply-adds, each sum has one more rounding.
  const int64_t size = 64 * at::get_num_threads() * 37;
  for (const Arch arch : ops::test::supported_archs()) {
    const ArchScope scope(arch);
    const bool fused = ops::current_arch() != Arch::generic && at::get_cpu_capability() != "DEFAULT";
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
      for (const AdamWNumbers& numbers : settings()) {
        at::manual_seed(1);
        const AdamWTensors ours = random_tensors(size, type), theirs = copy_of(ours);
        for (int i = 0; i < 3; ++i) {
          theirs.grad.copy_(ours.grad);  // ATen has divided it
          adamw_on_cpu_({ours}, numbers);
          step_in_aten(theirs, numbers);
        }
        const double allowed = type == at::kFloat ? 8 : (1 << 17);  // of bfloat16: one of its ulps, 2^16 of float32's
        EXPECT_TRUE(fused ? same(ours, theirs) : ulps(ours, theirs) <= allowed)
            << type << " on instruction set " << static_cast<int>(arch) << ", beta1 " << numbers.beta1 << ", divisor "
            << numbers.grad_divisor << ": " << ulps(ours, theirs) << " ulps";
      }
    }
  }
}

TEST(AdamWOnCpu, HasTheSameBitsAtAnyPlaceAndOnAnyNumberOfThreads) {
  const int threads = at::get_num_threads();
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    at::manual_seed(2);
    const AdamWTensors before = random_tensors(100'003, type);
    const AdamWTensors expected = copy_of(before);
    adamw_on_cpu_({expected}, kNumbers);
    for (const int used : {1, 2, 3}) {
      at::set_num_threads(used);
      const AdamWTensors whole = copy_of(before);
      adamw_on_cpu_({whole}, kNumbers);
      EXPECT_TRUE(same(whole, expected)) << used << " threads, " << type;
      std::vector<AdamWTensors> parts;  // of odd sizes, as many small parameters
      const AdamWTensors split = copy_of(before);
      for (int64_t first = 0; first < split.value.numel();) {
        const int64_t size = std::min<int64_t>(first % 77 * 131 + 1, split.value.numel() - first);
        const auto part = [&](const at::Tensor& t) { return t.narrow(0, first, size); };
        parts.push_back({part(split.value), part(split.grad), part(split.exp_avg), part(split.exp_avg_sq), split.step});
        first += size;
      }
      adamw_on_cpu_(parts, kNumbers);
      EXPECT_TRUE(same(split, expected)) << used << " threads, " << type << ", in parts";
    }
    at::set_num_threads(threads);
  }
}

TEST(AdamWOnCpu, CorrectsTheBiasOfEachParameterByItsOwnSteps) {
  const AdamWTensors young = random_tensors(640, at::kFloat, 1), old = random_tensors(640, at::kFloat, 100);
  const AdamWTensors young_alone = copy_of(young), old_alone = copy_of(old);
  adamw_on_cpu_({young, old}, kNumbers);
  adamw_on_cpu_({young_alone}, kNumbers);
  adamw_on_cpu_({old_alone}, kNumbers);
  EXPECT_TRUE(same(young, young_alone));
  EXPECT_TRUE(same(old, old_alone));
}

TEST(AdamWOnCpu, ChangesNothingAfterANonFiniteGradient) {
  AdamW adamw({.lr = 0.1}, {"w"});
  const at::Tensor w = at::ones({33}), grad = at::full({33}, NAN);
  adamw.step({{"w", w, grad}}, {.found_inf = at::ones({1})});
  EXPECT_TRUE(at::equal(w, at::ones({33})));
  adamw.step({{"w", w, at::ones({33})}}, {.found_inf = at::zeros({1})});
  EXPECT_TRUE(w.lt(1).all().item<bool>());
}

TEST(AdamWOnCpu, IsProfiledAsAnOptimizerAndChangesVersions) {
  const AdamWTensors t = random_tensors(64, at::kFloat);
  const auto before = t.value._version();
  OperatorProfile profile;
  profile.start();
  adamw_on_cpu_({t}, kNumbers);
  profile.stop();
  EXPECT_EQ(profile.of(OperatorKind::optimizer).calls, 1);
  EXPECT_GT(t.value._version(), before);
}

}  // namespace
}  // namespace lehr::optim
