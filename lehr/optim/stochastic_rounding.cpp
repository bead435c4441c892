// Checks, and the multi-threaded fused kernels.
#include "lehr/optim/stochastic_rounding.h"

#include <cmath>
#include <optional>
#include <tuple>

#include "lehr/base/error.h"
#include "lehr/base/parallel.h"
#include "lehr/base/random.h"
#include "lehr/ops/cpu.h"
#include "lehr/ops/cuda.h"
#include "lehr/ops/stochastic_rounding/kernels.h"

namespace lehr::optim {

RoundingNoise rounding_noise(uint64_t seed, int64_t step, std::string_view tensor) {
  return {.seed = seed, .stream = hash_name(fmt::format("rounding {} {}", step, tensor)), .block_an_element = false};
}

RoundingNoise raw_rounding_noise(uint64_t seed) {
  return {.seed = seed, .stream = 0, .block_an_element = true};
}

namespace {

/// Elements that are contiguous both in a tensor and in the whole parameter.
struct Run {
  int64_t local = 0;
  ops::RoundingRange range = {};
};

/// Returns the last dimension that the tensor does not hold whole (or 0); a run covers it and all later ones.
int64_t split_dim(const at::Tensor& tensor, const ShardSpan& placement) {
  int64_t split = tensor.dim() - 1;
  while (split > 0 && tensor.size(split) == placement.shape[static_cast<size_t>(split)]) {
    --split;
  }
  return split;
}

std::vector<Run> runs_of(const at::Tensor& tensor, const ShardSpan& placement) {
  if (placement.shape.empty()) {
    return {{.local = 0, .range = {.first = 0, .count = tensor.numel()}}};
  }
  const int64_t split = split_dim(tensor, placement);
  int64_t count = 1;
  for (int64_t dim = split; dim < tensor.dim(); ++dim) {
    count *= tensor.size(dim);
  }
  std::vector<Run> runs;
  for (int64_t local = 0; local < tensor.numel(); local += count) {
    int64_t global = 0;
    int64_t stride = 1;
    int64_t rest = local;
    for (int64_t dim = tensor.dim() - 1; dim >= 0; --dim) {
      const auto at = static_cast<size_t>(dim);
      global += stride * (rest % tensor.size(dim) + placement.offset[at]);
      rest /= tensor.size(dim);
      stride *= placement.shape[at];
    }
    runs.push_back({.local = local, .range = {.first = global, .count = count}});
  }
  return runs;
}

/// The runs in the form of GPU kernels; nullopt for more dimensions than they support.
std::optional<ops::cuda::RoundingRuns> gpu_runs_of(const at::Tensor& tensor, const ShardSpan& placement) {
  ops::cuda::RoundingRuns runs = {};
  runs.count = tensor.numel();
  runs.runs = 1;
  if (placement.shape.empty()) {
    return runs;
  }
  const int64_t split = split_dim(tensor, placement);
  if (split > ops::cuda::RoundingRuns::kMostDims) {
    return std::nullopt;
  }
  int64_t stride = 1;
  for (int64_t dim = tensor.dim() - 1; dim >= 0; --dim) {
    const auto at = static_cast<size_t>(dim);
    runs.first += stride * placement.offset[at];
    if (dim < split) {
      runs.size[at] = tensor.size(dim);
      runs.step[at] = stride;
      runs.runs *= tensor.size(dim);
    }
    stride *= placement.shape[at];
  }
  runs.dims = std::max<int64_t>(split, 0);
  runs.count = tensor.numel() / std::max<int64_t>(1, runs.runs);
  return runs;
}

/// Calls body(run, first, last) for ranges of noise groups, distributed over threads.
template <class Body>
void over_runs(const at::Tensor& tensor, const ShardSpan& placement, const Body& body) {
  const auto groups = [](const ops::RoundingRange& range) {
    return std::pair(
        range.first / ops::kNoiseGroup, (range.first + range.count + ops::kNoiseGroup - 1) / ops::kNoiseGroup);
  };
  const std::vector<Run> runs = runs_of(tensor, placement);
  if (tensor.numel() == 0) {
    return;
  }
  if (runs.size() == 1) {
    const auto [begin, end] = groups(runs.front().range);
    parallel_for(begin, end, ops::cpu::grain_for(ops::kNoiseGroup), [&](int64_t first, int64_t last) {
      body(runs.front(), first, last);
    });
    return;
  }
  const int64_t grain = ops::cpu::grain_for(runs.front().range.count);
  parallel_for(0, static_cast<int64_t>(runs.size()), grain, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) {
      const Run& run = runs[static_cast<size_t>(i)];
      const auto [begin, end] = groups(run.range);
      body(run, begin, end);
    }
  });
}

void check(const char* what, const at::Tensor& tensor, const at::Tensor& value, bool narrow_allowed) {
  require(
      tensor.sizes() == value.sizes() && tensor.device() == value.device() && tensor.is_contiguous() &&
          (tensor.scalar_type() == at::kFloat || (narrow_allowed && tensor.scalar_type() == at::kBFloat16)),
      "stochastic rounding: {} must be contiguous, {} and shaped like the target, {}; found {}",
      what,
      narrow_allowed ? "float32 or bfloat16" : "float32",
      describe(value),
      describe(tensor));
}

void check_target(const at::Tensor& target) {
  require(
      target.scalar_type() == at::kBFloat16 && target.is_contiguous(),
      "stochastic rounding: the target must be contiguous and bfloat16, found {}",
      describe(target));
}

using ops::Bf16;
using ops::cpu::elements;

template <class T>
ops::StochasticAdamWCall<T> whole_call(
    const StochasticAdamWTensors& t, const StochasticAdamWNumbers& n, const StochasticAdamWNoise& noise) {
  const bool wide = t.grad.scalar_type() == at::kFloat;
  return {
      .value = elements<Bf16>(t.value),
      .grad = wide ? elements<float>(t.grad) : nullptr,
      .grad_bf16 = wide ? nullptr : elements<Bf16>(t.grad),
      .exp_avg = elements<T>(t.exp_avg),
      .exp_avg_sq = elements<T>(t.exp_avg_sq),
      .range = {},
      .value_noise = noise.value,
      .exp_avg_noise = noise.exp_avg,
      .exp_avg_sq_noise = noise.exp_avg_sq,
      .grad_factor = static_cast<float>(1 / n.grad_divisor),
      .decay = static_cast<float>(1 - n.lr * n.weight_decay),
      .beta1 = static_cast<float>(n.beta1),
      .beta2 = static_cast<float>(n.beta2),
      .one_minus_beta1 = static_cast<float>(1 - n.beta1),
      .one_minus_beta2 = static_cast<float>(1 - n.beta2),
      .step_size = static_cast<float>(n.lr / (1 - std::pow(n.beta1, n.step))),
      .root_factor = static_cast<float>(1 / std::sqrt(1 - std::pow(n.beta2, n.step))),
      .eps = static_cast<float>(n.eps)};
}

template <class T>
void step_with_moments(
    const StochasticAdamWTensors& t, const StochasticAdamWNumbers& n, const StochasticAdamWNoise& noise) {
  const bool wide = t.grad.scalar_type() == at::kFloat;
  const ops::StochasticAdamWCall<T> whole = whole_call<T>(t, n, noise);
  const auto& kernels = ops::cpu_kernels<ops::StochasticAdamWKernels<T>>();
  over_runs(t.value, t.placement, [&](const Run& run, int64_t first, int64_t last) {
    auto call = whole;
    call.value += run.local;
    call.grad += wide ? run.local : 0;
    call.grad_bf16 += wide ? 0 : run.local;
    call.exp_avg += run.local;
    call.exp_avg_sq += run.local;
    call.range = run.range;
    kernels.adamw(call, first, last);
  });
}

/// Increments the version counters of tensors that kernels have written, as ATen's operators do.
void mark_written(std::initializer_list<at::Tensor> tensors) {
  for (const at::Tensor& tensor : tensors) {
    tensor.unsafeGetTensorImpl()->bump_version();
  }
}

/// Returns whether a GPU kernel supports the step.
bool fits_gpu(const StochasticAdamWStep& step) {
  const auto& [value, exp_avg, exp_avg_sq] = step.noise;
  return ops::cuda::supports(step.tensors.value) && gpu_runs_of(step.tensors.value, step.tensors.placement) &&
         !value.block_an_element && !exp_avg.block_an_element && !exp_avg_sq.block_an_element;
}

/// Returns whether one launch can process both steps: all but the step number and the tensors' noise is equal.
bool alike(const StochasticAdamWStep& a, const StochasticAdamWStep& b) {
  const StochasticAdamWNumbers &m = a.numbers, &n = b.numbers;
  return a.tensors.exp_avg.scalar_type() == b.tensors.exp_avg.scalar_type() &&
         a.tensors.grad.scalar_type() == b.tensors.grad.scalar_type() &&
         a.tensors.value.device() == b.tensors.value.device() && a.noise.value.seed == b.noise.value.seed &&
         std::tie(m.lr, m.beta1, m.beta2, m.eps, m.weight_decay, m.grad_divisor) ==
             std::tie(n.lr, n.beta1, n.beta2, n.eps, n.weight_decay, n.grad_divisor);
}

constexpr size_t kMostInLaunch = ops::cuda::StochasticAdamWList<float>::kMost;

/// Factor of the gradients and found_inf as float32 on one device; undefined where StochasticAdamWOnDevice has none.
struct DeviceNumbers {
  at::Tensor grad_scale = {};
  at::Tensor found_inf = {};

  DeviceNumbers(const StochasticAdamWOnDevice& numbers, at::Device device) {
    if (numbers.grad_divisor.defined()) {  // in float64 first, as on the CPU
      grad_scale = numbers.grad_divisor.detach().to(device, at::kDouble).reciprocal().to(at::kFloat);
    }
    if (numbers.found_inf.defined()) {
      found_inf = numbers.found_inf.detach().to(device, at::kFloat);
    }
  }
};

/// Runs steps that are alike, at most kMostInLaunch, in one launch.
void step_on_gpu(const std::vector<const StochasticAdamWStep*>& steps, const StochasticAdamWOnDevice& on_device) {
  const DeviceNumbers numbers(on_device, steps.front()->tensors.value.device());
  ops::cuda::run<ops::cuda::StochasticAdamWLaunches>(
      "stochastic_adamw", steps.front()->tensors.exp_avg, [&](auto element, const auto& kernels) {
        using T = decltype(element);
        ops::cuda::StochasticAdamWList<T> list = {};
        list.grad_scale = numbers.grad_scale.defined() ? elements<float>(numbers.grad_scale) : nullptr;
        list.found_inf = numbers.found_inf.defined() ? elements<float>(numbers.found_inf) : nullptr;
        for (const StochasticAdamWStep* step : steps) {
          const auto call = whole_call<T>(step->tensors, step->numbers, step->noise);
          const auto runs = gpu_runs_of(step->tensors.value, step->tensors.placement).value();
          list.of[list.tensors++] = {
              .value = call.value,
              .grad = step->tensors.grad.const_data_ptr(),
              .exp_avg = call.exp_avg,
              .exp_avg_sq = call.exp_avg_sq,
              .value_stream = call.value_noise.stream,
              .exp_avg_stream = call.exp_avg_noise.stream,
              .exp_avg_sq_stream = call.exp_avg_sq_noise.stream,
              .step_size = call.step_size,
              .root_factor = call.root_factor,
              .runs = runs,
              .first_group = list.groups};
          list.groups += ops::cuda::groups_of(runs);
          list.seed = call.value_noise.seed;
          list.wide_grads = step->tensors.grad.scalar_type() == at::kFloat;
          list.grad_factor = call.grad_factor;
          list.decay = call.decay;
          list.beta1 = call.beta1;
          list.beta2 = call.beta2;
          list.one_minus_beta1 = call.one_minus_beta1;
          list.one_minus_beta2 = call.one_minus_beta2;
          list.eps = call.eps;
        }
        return kernels.adamw(list);
      });
}

void check(const StochasticAdamWTensors& tensors) {
  check_target(tensors.value);
  check("the gradient", tensors.grad, tensors.value, /*narrow_allowed=*/true);
  check("exp_avg", tensors.exp_avg, tensors.value, /*narrow_allowed=*/true);
  check("exp_avg_sq", tensors.exp_avg_sq, tensors.value, /*narrow_allowed=*/true);
  require(
      tensors.exp_avg.scalar_type() == tensors.exp_avg_sq.scalar_type(),
      "stochastic rounding: exp_avg is {}, exp_avg_sq is {}; they must agree",
      describe(tensors.exp_avg),
      describe(tensors.exp_avg_sq));
}

bool round_on_gpu(
    const at::Tensor& target, const at::Tensor& source, const RoundingNoise& noise, const ShardSpan& placement) {
  const auto runs = gpu_runs_of(target, placement);
  if (!ops::cuda::supports(target) || !runs || noise.block_an_element) {
    return false;
  }
  const c10::DeviceGuard guard(target.device());
  ops::cuda::check_status(
      "stochastic rounding",
      ops::cuda::table().get<ops::cuda::StochasticRoundLaunches>().round(
          elements<float>(source), elements<Bf16>(target), noise, *runs));
  return true;
}

}  // namespace

void copy_stochastically_(
    const at::Tensor& target, const at::Tensor& source, const RoundingNoise& noise, const ShardSpan& placement) {
  check_target(target);
  check("the source", source, target, /*narrow_allowed=*/false);
  if (!round_on_gpu(target, source, noise, placement)) {
    if (!target.is_cpu()) {
      return copy_stochastically_reference_(target, source, noise, placement);
    }
    const auto& kernels = ops::cpu_kernels<ops::StochasticRoundKernels>();
    over_runs(target, placement, [&](const Run& run, int64_t first, int64_t last) {
      kernels.round(
          elements<float>(source) + run.local, elements<Bf16>(target) + run.local, run.range, noise, first, last);
    });
  }
  mark_written({target});
}

void stochastic_adamw_(
    const StochasticAdamWTensors& tensors, const StochasticAdamWNumbers& numbers, const StochasticAdamWNoise& noise) {
  stochastic_adamw_({{.tensors = tensors, .numbers = numbers, .noise = noise}});
}

namespace {
/// One step on the CPU, whose tensors the host may read.
void step_on_cpu(const StochasticAdamWStep& step, const StochasticAdamWOnDevice& on_device) {
  if (on_device.found_inf.defined() && on_device.found_inf.item<float>() != 0) {
    return;
  }
  StochasticAdamWNumbers numbers = step.numbers;
  if (on_device.grad_divisor.defined()) {
    numbers.grad_divisor *= on_device.grad_divisor.item<double>();
  }
  if (step.tensors.exp_avg.scalar_type() == at::kFloat) {
    step_with_moments<float>(step.tensors, numbers, step.noise);
  } else {
    step_with_moments<Bf16>(step.tensors, numbers, step.noise);
  }
}
}  // namespace

void stochastic_adamw_(const std::vector<StochasticAdamWStep>& steps, const StochasticAdamWOnDevice& on_device) {
  for (const StochasticAdamWStep& step : steps) {
    check(step.tensors);
  }
  std::vector<const StochasticAdamWStep*> together;
  const auto launch = [&] {
    if (!together.empty()) {
      step_on_gpu(together, on_device);
      together.clear();
    }
  };
  for (const StochasticAdamWStep& step : steps) {
    const auto& [value, grad, exp_avg, exp_avg_sq, placement] = step.tensors;
    if (fits_gpu(step)) {
      if (!together.empty() && (together.size() == kMostInLaunch || !alike(*together.front(), step))) {
        launch();
      }
      together.push_back(&step);
    } else if (!value.is_cpu()) {
      stochastic_adamw_reference_(step.tensors, step.numbers, step.noise, on_device);
      continue;
    } else {
      step_on_cpu(step, on_device);
    }
    mark_written({value, exp_avg, exp_avg_sq});
  }
  launch();
}

}  // namespace lehr::optim
