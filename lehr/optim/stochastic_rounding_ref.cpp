// The definition of stochastic rounding and of AdamW with it, in ATen operators.
#include <ATen/ops/arange.h>
#include <ATen/ops/bitwise_right_shift.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/isnan.h>
#include <ATen/ops/where.h>

#include <cmath>

#include "lehr/optim/stochastic_rounding.h"

namespace lehr::optim {
namespace {

/// Returns the index in the whole parameter of each element of `tensor`: int64, flat.
at::Tensor global_indices(const at::Tensor& tensor, const ShardSpan& placement) {
  const auto options = tensor.options().dtype(at::kLong);
  if (placement.shape.empty()) {
    return at::arange(tensor.numel(), options);
  }
  at::Tensor index = at::zeros({}, options);
  for (int64_t dim = 0; dim < tensor.dim(); ++dim) {
    const auto at = static_cast<size_t>(dim);
    const at::Tensor along = at::arange(tensor.size(dim), options) + placement.offset[at];
    index = index.unsqueeze(-1) * placement.shape[at] + along;
  }
  return index.reshape({-1});
}

constexpr int64_t kLow = 0xffffffff;

at::Tensor right_shift(const at::Tensor& x, int64_t bits) {
  return at::bitwise_right_shift(x, bits);
}

/// Returns the words of these blocks: Philox4x32-10 in int64, whose products wrap as unsigned ones do.
std::vector<at::Tensor> philox_words(const RoundingNoise& noise, const at::Tensor& blocks) {
  const auto upper = [](uint64_t x) { return static_cast<int64_t>(x >> 32); };
  const auto lower = [](uint64_t x) { return static_cast<int64_t>(x) & kLow; };
  std::vector<at::Tensor> c{
      blocks & kLow,
      right_shift(blocks, 32) & kLow,
      at::full_like(blocks, lower(noise.stream)),
      at::full_like(blocks, upper(noise.stream))};
  int64_t low = lower(noise.seed);
  int64_t high = upper(noise.seed);
  for (int round = 0; round < 10; ++round) {
    const at::Tensor a = c[0] * int64_t{0xD2511F53};
    const at::Tensor b = c[2] * int64_t{0xCD9E8D57};
    c = {(right_shift(b, 32) & kLow) ^ c[1] ^ low, b & kLow, (right_shift(a, 32) & kLow) ^ c[3] ^ high, a & kLow};
    low = (low + 0x9E3779B9) & kLow;
    high = (high + 0xBB67AE85) & kLow;
  }
  return c;
}

/// Returns 16 random bits per element, int64. Of 128 elements, element i uses half (i / 16) of block (i % 16).
at::Tensor noise_of(const RoundingNoise& noise, const at::Tensor& index) {
  if (noise.block_an_element) {
    return philox_words(noise, index)[0] & 0xffff;
  }
  const at::Tensor group = right_shift(index, 7);
  const at::Tensor half = right_shift(index, 4) & 7;
  const auto words = philox_words(noise, group * 16 + (index & 15));
  const at::Tensor word = at::stack(words).gather(0, right_shift(half, 1).unsqueeze(0)).squeeze(0);
  return at::where((half & 1).eq(1), right_shift(word, 16), word) & 0xffff;
}

at::Tensor rounded(const at::Tensor& x, const at::Tensor& random_bits) {
  const at::Tensor bits = x.view(at::kInt).to(at::kLong) & kLow;
  const at::Tensor cut = right_shift(bits, 16);
  const at::Tensor moved = right_shift(bits + random_bits.view(x.sizes()), 16);
  at::Tensor result = at::where((moved & 0x7fff).ge(0x7f80), cut, moved);
  result = at::where(at::isnan(x), cut | 0x40, result);
  return result.to(at::kShort).view(at::kBFloat16);
}

void store_(const at::Tensor& target, const at::Tensor& x, const RoundingNoise& noise, const at::Tensor& index) {
  target.copy_(target.scalar_type() == at::kBFloat16 ? rounded(x, noise_of(noise, index)) : x);
}

}  // namespace

void copy_stochastically_reference_(
    const at::Tensor& target, const at::Tensor& source, const RoundingNoise& noise, const ShardSpan& placement) {
  const at::NoGradGuard no_grad;
  store_(target, source, noise, global_indices(target, placement));
}

void stochastic_adamw_reference_(
    const StochasticAdamWTensors& tensors,
    const StochasticAdamWNumbers& numbers,
    const StochasticAdamWNoise& noise,
    const StochasticAdamWOnDevice& on_device) {
  const at::NoGradGuard no_grad;
  const auto& n = numbers;
  const at::Tensor index = global_indices(tensors.value, tensors.placement);
  at::Tensor g = tensors.grad.to(at::kFloat) / n.grad_divisor;
  if (on_device.grad_divisor.defined()) {
    g = g / on_device.grad_divisor.reshape({});
  }
  const at::Tensor m = tensors.exp_avg.to(at::kFloat) * n.beta1 + g * (1 - n.beta1);
  const at::Tensor v = tensors.exp_avg_sq.to(at::kFloat) * n.beta2 + g * g * (1 - n.beta2);
  const at::Tensor root = (v / (1 - std::pow(n.beta2, n.step))).sqrt() + n.eps;
  const at::Tensor update = m / (1 - std::pow(n.beta1, n.step)) / root * n.lr;
  const at::Tensor p = tensors.value.to(at::kFloat) * (1 - n.lr * n.weight_decay) - update;
  const auto update_ = [&](const at::Tensor& target, const at::Tensor& x, const RoundingNoise& its_noise) {
    const at::Tensor before = on_device.found_inf.defined() ? target.clone() : at::Tensor();
    store_(target, x, its_noise, index);
    if (before.defined()) {
      target.copy_(at::where(on_device.found_inf.reshape({}).ne(0), before, target));
    }
  };
  update_(tensors.value, p, noise.value);
  update_(tensors.exp_avg, m, noise.exp_avg);
  update_(tensors.exp_avg_sq, v, noise.exp_avg_sq);
}

}  // namespace lehr::optim
