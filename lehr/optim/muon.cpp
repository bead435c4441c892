#include "lehr/optim/muon.h"

#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/_foreach_div.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_sub.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/split_with_sizes.h>
#include <ATen/ops/where.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "lehr/base/error.h"
#include "lehr/base/name_pattern.h"
#include "lehr/ops/cuda.h"

namespace lehr::optim {
namespace {

std::vector<std::string> names_of(const std::vector<ParameterInfo>& parameters) {
  std::vector<std::string> names;
  for (const auto& parameter : parameters) {
    names.push_back(parameter.name);
  }
  return names;
}

at::ScalarType wide_type(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

// `shape` ends with rows and columns.
double scale_of(MuonScale scale, at::IntArrayRef shape) {
  const auto rows = static_cast<double>(shape[shape.size() - 2]);
  const auto columns = static_cast<double>(shape.back());
  return scale == MuonScale::original ? std::sqrt(std::max(1.0, rows / columns))
                                      : 0.2 * std::sqrt(std::max(rows, columns));
}

// Of a matrix with these rows and columns: every iteration multiplies matrices with the shorter side as inner size.
double newton_schulz_cost(at::IntArrayRef shape) {
  const auto shorter = static_cast<double>(std::min(shape[0], shape[1]));
  return shorter * shorter * static_cast<double>(2 * std::max(shape[0], shape[1]) + std::min(shape[0], shape[1]));
}

}  // namespace

at::Tensor orthogonalize(const at::Tensor& matrices, int64_t steps) {
  const at::NoGradGuard no_grad;
  const bool tall = matrices.size(-2) > matrices.size(-1);
  at::Tensor x = matrices.to(wide_type(matrices));
  x = tall ? x.mT() : x;
  // The iteration requires singular values of at most 1; the Frobenius norm bounds the largest one.
  x = x / at::linalg_vector_norm(x, 2, at::IntArrayRef{-2, -1}, /*keepdim=*/true).clamp_min(1e-7);
  // X <- a X + (b A + c A^2) X, where A = X X^T.
  for (int64_t i = 0; i < steps; ++i) {
    const at::Tensor gram = at::matmul(x, x.mT());
    const at::Tensor polynomial = at::matmul(gram, gram).mul_(2.0315).sub_(gram, 4.7750);
    x = at::matmul(polynomial, x).add_(x, 3.4445);
  }
  return tall ? x.mT() : x;
}

// The part whose steps are orthogonalized: hidden matrices.
class Muon::Matrices final : public PerParameterOptimizer {
 public:
  Matrices(
      const OptimizerConfig& config,
      const std::vector<ParameterInfo>& parameters,
      std::shared_ptr<WholeTensors> whole_tensors)
      : PerParameterOptimizer(config, names_of(parameters), {"momentum_buffer"}),
        momentum_(config.momentum.value_or(0.95)),
        nesterov_(config.nesterov.value_or(true)),
        steps_(config.ns_steps),
        scale_(config.muon_scale),
        whole_tensors_(std::move(whole_tensors)) {
    const NamePattern exclude(config.muon_exclude);
    for (const auto& [name, shape] : parameters) {
      const bool matrix = shape.size() == 2 || shape.size() == 3;
      const bool excluded = !config.muon_exclude.empty() && exclude.matches_part(name);
      if (matrix && !excluded) {
        names_.insert(name);
      }
    }
    require(
        !names_.empty(),
        "optimizer.muon_exclude: \"{}\" leaves muon no matrix; use adamw, or exclude less",
        config.muon_exclude);
  }

  bool takes_found_inf() const override { return true; }
  bool has(const std::string& name) const { return names_.contains(name); }

 private:
  void check_parameter(const NamedParameter& parameter) const override {
    const auto sizes = parameter.value.sizes();
    const auto& shape = parameter.placement.shape;
    require(
        whole_tensors_ || shape.empty() || std::equal(sizes.end() - 2, sizes.end(), shape.end() - 2),
        "{}: muon needs whole matrices, found {} as a part of [{}]; gather rows and columns, or use adamw",
        parameter.name,
        describe(parameter.value),
        c10::Join(", ", shape));
  }

  void update(const GroupSettings& group, const std::vector<Item>& items, const StepOptions& options) override {
    if (whole_tensors_) {
      update_shards(group, items, options);
      return;
    }
    std::vector<at::Tensor> matrices = values(items);
    for (const std::vector<size_t>& list : stacks(matrices)) {
      std::vector<const Item*> together;
      for (const size_t i : list) {
        together.push_back(&items[i]);
      }
      std::vector<at::Tensor> steps = next_directions(together, options);
      orthogonalize_all(steps);
      add_steps(group, together, steps, scale_of(scale_, steps.front().sizes()), options);
    }
  }

  /// Orthogonalizes on the ranks that own whole matrices; everything else is done on shards.
  void update_shards(const GroupSettings& group, const std::vector<Item>& items, const StepOptions& options) const {
    std::vector<TensorPart> parts;
    for (const Item& item : items) {
      parts.push_back({.name = item.parameter->name, .tensor = next_directions({&item}, options).front()});
    }
    whole_tensors_->apply(parts, {.dims = 2, .cost = newton_schulz_cost, .compute = [this](auto& matrices) {
                                    for (const std::vector<size_t>& list : stacks(matrices)) {
                                      std::vector<at::Tensor> together;
                                      for (const size_t i : list) {
                                        together.push_back(matrices[i]);
                                      }
                                      orthogonalize_all(together);
                                      for (size_t i = 0; i < list.size(); ++i) {
                                        matrices[list[i]] = together[i];
                                      }
                                    }
                                  }});
    for (size_t i = 0; i < items.size(); ++i) {
      const auto& shape = items[i].parameter->placement.shape;
      const double scale = scale_of(scale_, shape.empty() ? items[i].value.sizes() : at::IntArrayRef(shape));
      add_steps(group, {&items[i]}, {parts[i].tensor}, scale, options);
    }
  }

  /// Decays the values, and subtracts the steps times `scale` and the learning rate.
  static void add_steps(
      const GroupSettings& group,
      const std::vector<const Item*>& items,
      const std::vector<at::Tensor>& steps,
      double scale,
      const StepOptions& options) {
    const double lr = group.lr * options.lr_factor;
    std::vector<at::Tensor> values, wide;
    for (size_t i = 0; i < items.size(); ++i) {
      values.push_back(items[i]->value);
      wide.push_back(values[i].to(steps[i].scalar_type()));
    }
    wide = at::_foreach_mul(wide, 1 - lr * group.weight_decay);
    at::_foreach_sub_(wide, steps, lr * scale);
    write(values, wide, options);
  }

  /// Copies `news` to `tensors`, except if found_inf is 1.
  static void write(
      const std::vector<at::Tensor>& tensors, const std::vector<at::Tensor>& news, const StepOptions& options) {
    if (!options.found_inf.defined()) {
      at::_foreach_copy_(tensors, news);
      return;
    }
    const at::Tensor left_out = options.found_inf.detach().reshape({}).to(tensors.front().device()).ne(0);
    for (size_t i = 0; i < tensors.size(); ++i) {
      tensors[i].copy_(at::where(left_out, tensors[i].to(news[i].scalar_type()), news[i]));
    }
  }

  /// Orthogonalizes matrices of one shape, (rows, columns) or (experts, rows, columns), as one batch.
  void orthogonalize_all(std::vector<at::Tensor>& tensors) const {
    if (tensors.size() == 1) {
      tensors.front() = orthogonalize(tensors.front(), steps_);
      return;
    }
    std::vector<at::Tensor> stacked;
    std::vector<int64_t> counts;
    for (const at::Tensor& tensor : tensors) {
      stacked.push_back(tensor.dim() == 2 ? tensor.unsqueeze(0) : tensor);
      counts.push_back(stacked.back().size(0));
    }
    const std::vector<at::Tensor> done = at::split_with_sizes(orthogonalize(at::cat(stacked), steps_), counts);
    for (size_t i = 0; i < tensors.size(); ++i) {
      tensors[i] = tensors[i].dim() == 2 ? done[i].squeeze(0) : done[i];
    }
  }

  /// Adds the gradients to the momenta, and returns the directions to orthogonalize.
  std::vector<at::Tensor> next_directions(const std::vector<const Item*>& items, const StepOptions& options) const {
    const auto wide = wide_type(items.front()->value);
    std::vector<at::Tensor> grads, states, momenta;
    for (const Item* item : items) {
      grads.push_back(item->grad.to(wide));
      states.push_back(item->state[0]);
      momenta.push_back(states.back().to(wide));
    }
    if (options.grad_divisor.defined()) {
      grads = at::_foreach_div(grads, options.grad_divisor.to(grads.front().device(), wide).reshape({}));
    }
    grads = at::_foreach_mul(grads, 1 - momentum_);
    momenta = at::_foreach_add(at::_foreach_mul(momenta, momentum_), grads);
    write(states, momenta, options);
    if (nesterov_) {
      at::_foreach_mul_(momenta, momentum_);
      at::_foreach_add_(momenta, grads);
    }
    return momenta;
  }

  /// Groups tensors whose matrices have one shape, to iterate as one batch on a GPU, which one small matmul does not
  /// fill; at most kMostStacked elements. On other devices each is alone, since a stack only takes memory.
  static std::vector<std::vector<size_t>> stacks(const std::vector<at::Tensor>& tensors) {
    std::vector<std::vector<size_t>> found;
    std::map<std::pair<int64_t, int64_t>, size_t> open;  // index in `found` by shape
    std::map<size_t, int64_t> elements;
    for (size_t i = 0; i < tensors.size(); ++i) {
      const at::Tensor& tensor = tensors[i];
      const std::pair shape(tensor.size(-2), tensor.size(-1));
      const auto it = ops::cuda::on_gpu(tensor) ? open.find(shape) : open.end();
      if (it != open.end() && elements[it->second] + tensor.numel() <= kMostStacked) {
        found[it->second].push_back(i);
        elements[it->second] += tensor.numel();
        continue;
      }
      open[shape] = found.size();
      elements[found.size()] = tensor.numel();
      found.push_back({i});
    }
    return found;
  }

  static constexpr int64_t kMostStacked = 32 << 20;

  double momentum_;
  bool nesterov_;
  int64_t steps_;
  MuonScale scale_;
  std::shared_ptr<WholeTensors> whole_tensors_;
  std::set<std::string> names_;
};

Muon::Muon(
    const OptimizerConfig& config,
    const std::vector<ParameterInfo>& parameters,
    std::shared_ptr<WholeTensors> whole_tensors)
    : matrices_(std::make_unique<Matrices>(config, parameters, std::move(whole_tensors))),
      rest_(config, names_of(parameters)) {}

Muon::~Muon() = default;

std::pair<std::vector<NamedParameter>, std::vector<NamedParameter>> Muon::split(
    const std::vector<NamedParameter>& parameters) const {
  std::pair<std::vector<NamedParameter>, std::vector<NamedParameter>> parts;
  for (const auto& parameter : parameters) {
    (matrices_->has(parameter.name) ? parts.first : parts.second).push_back(parameter);
  }
  return parts;
}

void Muon::allocate(const std::vector<NamedParameter>& parameters) {
  const auto [matrices, rest] = split(parameters);
  matrices_->allocate(matrices);
  rest_.allocate(rest);
}

void Muon::step(const std::vector<NamedParameter>& parameters, const StepOptions& options) {
  const auto [matrices, rest] = split(parameters);
  matrices_->check(matrices);
  rest_.check(rest);
  matrices_->step(matrices, options);
  rest_.step(rest, options);
}

std::vector<std::pair<std::string, at::Tensor>> Muon::state() const {
  auto entries = matrices_->state();
  const auto rest = rest_.state();
  entries.insert(entries.end(), rest.begin(), rest.end());
  std::sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  return entries;
}

}  // namespace lehr::optim
