// AdamW: sorts parameters into buckets that one fused ATen call can update, and keeps the moments by name.
#include "lehr/optim/adamw.h"

#include <ATen/ops/_foreach_div.h>
#include <ATen/ops/_fused_adamw.h>
#include <c10/util/StringUtil.h>

#include <map>
#include <optional>
#include <tuple>

#include "lehr/base/error.h"

namespace lehr::optim {
namespace {

std::string describe(const at::Tensor& tensor) {
  return fmt::format(
      "{} [{}] on {}", c10::toString(tensor.scalar_type()), c10::Join(", ", tensor.sizes()), tensor.device().str());
}

void check_pair(const std::string& name, const char* what, const at::Tensor& other, const at::Tensor& value) {
  require(
      other.sizes() == value.sizes() && other.scalar_type() == value.scalar_type() && other.device() == value.device(),
      "{}: its {} is {}, the parameter is {}; they must agree",
      name,
      what,
      describe(other),
      describe(value));
}

void check_value(const std::string& name, const at::Tensor& value) {
  require(value.defined() && !value.is_meta(), "{}: the optimizer needs a parameter with storage", name);
  const auto dtype = value.scalar_type();
  require(
      dtype == at::kFloat || dtype == at::kDouble || dtype == at::kBFloat16,
      "{}: the optimizer updates float32, float64 and bfloat16, found {}",
      name,
      c10::toString(dtype));
  require(value.is_contiguous(), "{}: the optimizer needs a contiguous parameter, found {}", name, describe(value));
}

}  // namespace

// What one fused call takes: parameters of one group, device and dtype.
struct AdamW::Bucket {
  std::vector<at::Tensor> values;
  std::vector<at::Tensor> grads;
  std::vector<at::Tensor> exp_avgs;
  std::vector<at::Tensor> exp_avg_sqs;
  std::vector<int64_t*> steps;

  void update(const GroupSettings& group, const StepOptions& options);
};

AdamW::AdamW(const OptimizerConfig& config, const std::vector<std::string>& names) : groups_(config, names) {
  require(config.name == "AdamW", "optimizer.name: expected \"AdamW\", found \"{}\"", config.name);
}

void AdamW::allocate(const std::vector<NamedParameter>& parameters) {
  const at::NoGradGuard no_grad;
  for (const auto& parameter : parameters) {
    if (moments_.contains(parameter.name)) {
      continue;
    }
    groups_.group_of(parameter.name);
    check_value(parameter.name, parameter.value);
    const at::Tensor value = parameter.value.detach();
    moments_.emplace(
        parameter.name,
        Moments{
            .exp_avg = at::zeros_like(value),
            .exp_avg_sq = at::zeros_like(value),
            .step = at::zeros({}, at::TensorOptions(at::kLong))});
  }
}

void AdamW::step(const std::vector<NamedParameter>& parameters, const StepOptions& options) {
  const at::NoGradGuard no_grad;
  for (const auto& parameter : parameters) {
    if (parameter.grad.defined()) {
      groups_.group_of(parameter.name);
      check_value(parameter.name, parameter.value);
      check_pair(parameter.name, "gradient", parameter.grad, parameter.value);
      if (const auto it = moments_.find(parameter.name); it != moments_.end()) {
        check_pair(parameter.name, "moment", it->second.exp_avg, parameter.value);
      }
    }
  }

  std::map<std::tuple<size_t, std::string, at::ScalarType>, Bucket> buckets;
  for (const auto& parameter : parameters) {
    if (!parameter.grad.defined()) {
      continue;
    }
    allocate({parameter});
    Moments& moments = moments_.at(parameter.name);
    const auto key =
        std::tuple(groups_.group_of(parameter.name), parameter.value.device().str(), parameter.value.scalar_type());
    Bucket& bucket = buckets[key];
    bucket.values.push_back(parameter.value.detach());
    bucket.grads.push_back(parameter.grad.detach().contiguous());  // the fused kernel walks raw memory
    bucket.exp_avgs.push_back(moments.exp_avg);
    bucket.exp_avg_sqs.push_back(moments.exp_avg_sq);
    bucket.steps.push_back(moments.step.data_ptr<int64_t>());
  }
  for (auto& [key, bucket] : buckets) {
    bucket.update(groups_.groups()[std::get<0>(key)], options);
  }
}

void AdamW::Bucket::update(const GroupSettings& group, const StepOptions& options) {
  const at::Device device = values.front().device();
  at::Tensor divisor = options.grad_divisor.defined() ? options.grad_divisor.detach() : at::Tensor();
  if (divisor.defined() && divisor.is_cpu() && divisor.item<double>() == 1.0) {
    divisor.reset();  // the usual case: nothing to clip, so the kernel need not write the gradients back
  }
  // The fused kernel takes the divisor as float32, which is too coarse for float64 parameters: two meshes whose norms
  // differ in the last bit would then part by 1e-7.
  if (divisor.defined() && values.front().scalar_type() == at::kDouble) {
    at::_foreach_div_(grads, divisor.to(device, at::kDouble));
    divisor.reset();
  }
  std::optional<at::Tensor> grad_scale;
  if (divisor.defined()) {
    grad_scale = divisor.reshape({}).to(device, at::kFloat);
  }

  auto steps_taken = at::empty({static_cast<int64_t>(steps.size())}, at::kFloat);
  for (size_t i = 0; i < steps.size(); ++i) {
    steps_taken.data_ptr<float>()[i] = static_cast<float>(++*steps[i]);
  }
  const std::vector<at::Tensor> state_steps = steps_taken.to(device).unbind();
  at::_fused_adamw_(
      values,
      grads,
      exp_avgs,
      exp_avg_sqs,
      /*max_exp_avg_sqs=*/{},
      state_steps,
      group.lr * options.lr_factor,
      group.beta1,
      group.beta2,
      group.weight_decay,
      group.eps,
      /*amsgrad=*/false,
      /*maximize=*/false,
      grad_scale);
}

std::vector<std::pair<std::string, at::Tensor>> AdamW::state() const {
  std::vector<std::pair<std::string, at::Tensor>> entries;
  for (const auto& [name, moments] : moments_) {
    entries.emplace_back(name + ".exp_avg", moments.exp_avg);
    entries.emplace_back(name + ".exp_avg_sq", moments.exp_avg_sq);
    entries.emplace_back(name + ".step", moments.step);
  }
  return entries;
}

void AdamW::load_state(const std::map<std::string, at::Tensor>& tensors) {
  const at::NoGradGuard no_grad;
  std::string problems;
  const auto entries = state();
  std::map<std::string, at::Tensor> own(entries.begin(), entries.end());
  for (const auto& [name, tensor] : own) {
    const auto it = tensors.find(name);
    if (it == tensors.end()) {
      problems += fmt::format("\n  {}: missing", name);
    } else if (it->second.sizes() != tensor.sizes() || it->second.scalar_type() != tensor.scalar_type()) {
      problems += fmt::format("\n  {}: expected {}, found {}", name, describe(tensor), describe(it->second));
    }
  }
  for (const auto& [name, tensor] : tensors) {
    if (!own.contains(name)) {
      problems += fmt::format("\n  {}: belongs to no parameter of this model", name);
    }
  }
  require(problems.empty(), "optimizer state: it does not fit the model, so nothing was loaded:{}", problems);
  for (auto& [name, tensor] : own) {
    tensor.copy_(tensors.at(name));
  }
}

int64_t AdamW::state_bytes() const {
  int64_t bytes = 0;
  for (const auto& [name, moments] : moments_) {
    bytes += static_cast<int64_t>(moments.exp_avg.nbytes() + moments.exp_avg_sq.nbytes());
  }
  return bytes;
}

}  // namespace lehr::optim
