#include "lehr/nn/init.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "lehr/base/parallel.h"
#include "lehr/base/random.h"

namespace lehr::nn {

namespace {
// Quantile function of the normal distribution, for the truncated normal: Acklam's rational approximation. Its relative
// error is below 2e-8, less than that of rounding to float32.
double normal_quantile(double p) {
  constexpr double kA[] = {
      -3.969683028665376e+01,
      2.209460984245205e+02,
      -2.759285104469687e+02,
      1.383577518672690e+02,
      -3.066479806614716e+01,
      2.506628277459239e+00};
  constexpr double kB[] = {
      -5.447609879822406e+01,
      1.615858368580409e+02,
      -1.556989798598866e+02,
      6.680131188771972e+01,
      -1.328068155288572e+01};
  // The formula of the central region is enough: the truncation keeps p in [0.0227, 0.9773], hardly beyond its borders.
  const double q = p - 0.5;
  const double r = q * q;
  return (((((kA[0] * r + kA[1]) * r + kA[2]) * r + kA[3]) * r + kA[4]) * r + kA[5]) * q /
         (((((kB[0] * r + kB[1]) * r + kB[2]) * r + kB[3]) * r + kB[4]) * r + 1);
}

// The probability that a standard normal is below -2.
constexpr double kBelowMinusTwo = 0.02275013194817921;

void generate(const Init& init, const RandomStream& stream, int64_t first, int64_t count, double* out) {
  const auto start = static_cast<uint64_t>(first);
  switch (init.kind) {
    case Init::Kind::constant:
      std::fill(out, out + count, init.a);
      return;
    case Init::Kind::normal:
      stream.fill_normal(start, count, out);
      std::transform(out, out + count, out, [&](double x) { return init.a + init.b * x; });
      return;
    case Init::Kind::truncated_normal:
      stream.fill_uniform(start, count, out);
      std::transform(out, out + count, out, [&](double u) {
        return init.a + init.b * normal_quantile(kBelowMinusTwo + (u + 0x1p-33) * (1 - 2 * kBelowMinusTwo));
      });
      return;
    case Init::Kind::uniform:
      stream.fill_uniform(start, count, out);
      std::transform(out, out + count, out, [&](double u) { return init.a + (init.b - init.a) * u; });
      return;
    case Init::Kind::log_uniform:
      stream.fill_uniform(start, count, out);
      std::transform(out, out + count, out, [&](double u) { return std::log(init.a + (init.b - init.a) * u); });
      return;
    case Init::Kind::time_step:
      stream.fill_uniform(start, count, out);
      std::transform(out, out + count, out, [&](double u) {
        const double step = init.a * std::exp(u * std::log(init.b / init.a));
        return step + std::log(-std::expm1(-step));  // the inverse of softplus
      });
      return;
  }
}
}  // namespace

void fill(at::Tensor& tensor, const Init& init, uint64_t seed, std::string_view full_name, int64_t first_element) {
  at::NoGradGuard no_grad;
  if (init.kind == Init::Kind::constant) {
    tensor.fill_(init.a);
    return;
  }
  const RandomStream stream(seed, full_name);
  at::Tensor host = tensor.is_cpu() ? tensor.detach() : at::empty(tensor.sizes(), tensor.options().device(at::kCPU));
  constexpr int64_t kBlock = 4096;
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kBFloat16, at::kHalf, host.scalar_type(), "fill", [&] {
    scalar_t* data = host.data_ptr<scalar_t>();
    parallel_for(0, (host.numel() + kBlock - 1) / kBlock, 4, [&](int64_t begin, int64_t end) {
      std::vector<double> values(kBlock);
      for (int64_t block = begin; block < end; ++block) {
        const int64_t first = block * kBlock;
        const int64_t count = std::min(kBlock, host.numel() - first);
        generate(init, stream, first_element + first, count, values.data());
        // Rounded to float, so that a float64 model starts from the same numbers as a float32 one.
        for (int64_t i = 0; i < count; ++i) {
          data[first + i] = static_cast<scalar_t>(static_cast<float>(values[static_cast<size_t>(i)]));
        }
      }
    });
  });
  if (!tensor.is_cpu()) {
    tensor.copy_(host);
  }
}

void fill(
    at::Tensor& tensor,
    const Init& init,
    uint64_t seed,
    std::string_view full_name,
    const Box& box,
    const std::vector<int64_t>& shape) {
  at::NoGradGuard no_grad;
  if (init.kind == Init::Kind::constant) {
    tensor.fill_(init.a);
    return;
  }
  const at::Tensor flat = tensor.view(-1);
  for (const BoxRun& run : runs_of(box, shape)) {
    at::Tensor part = flat.narrow(0, run.local, run.count);
    fill(part, init, seed, full_name, run.global);
  }
}

}  // namespace lehr::nn
