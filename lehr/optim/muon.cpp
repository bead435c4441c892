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
#include <regex>
#include <set>

#include "lehr/base/error.h"
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

double scale_of(MuonScale scale, const at::Tensor& matrices) {
  const auto rows = static_cast<double>(matrices.size(-2));
  const auto columns = static_cast<double>(matrices.size(-1));
  return scale == MuonScale::original ? std::sqrt(std::max(1.0, rows / columns))
                                      : 0.2 * std::sqrt(std::max(rows, columns));
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
  Matrices(const OptimizerConfig& config, const std::vector<ParameterInfo>& parameters)
      : PerParameterOptimizer(config, names_of(parameters), {"momentum_buffer"}),
        momentum_(config.momentum.value_or(0.95)),
        nesterov_(config.nesterov.value_or(true)),
        steps_(config.ns_steps),
        scale_(config.muon_scale) {
    const std::regex exclude(config.muon_exclude);
    for (const auto& [name, shape] : parameters) {
      const bool matrix = shape.size() == 2 || shape.size() == 3;
      const bool excluded = !config.muon_exclude.empty() && std::regex_search(name, exclude);
      if (matrix && !excluded) {
        names_.insert(name);
      }
    }
    require(
        !names_.empty(),
        "optimizer.muon_exclude: \"{}\" leaves muon no matrix; take adamw, or exclude less",
        config.muon_exclude);
  }

  bool takes_found_inf() const override { return true; }
  bool has(const std::string& name) const { return names_.contains(name); }

 private:
  void check_parameter(const NamedParameter& parameter) const override {
    const auto sizes = parameter.value.sizes();
    const auto& shape = parameter.placement.shape;
    require(
        shape.empty() || std::equal(sizes.end() - 2, sizes.end(), shape.end() - 2),
        "{}: muon needs whole matrices, found {} as a part of [{}]; gather rows and columns, or take adamw",
        parameter.name,
        describe(parameter.value),
        c10::Join(", ", shape));
  }

  void update(const GroupSettings& group, const std::vector<Item>& items, const StepOptions& options) override {
    const double lr = group.lr * options.lr_factor;
    for (const std::vector<const Item*>& together : stacks(items)) {
      std::vector<at::Tensor> steps = next_directions(together, options);
      orthogonalize_all(steps);
      std::vector<at::Tensor> values, wide;
      for (size_t i = 0; i < together.size(); ++i) {
        values.push_back(together[i]->value);
        wide.push_back(values[i].to(steps[i].scalar_type()));
      }
      wide = at::_foreach_mul(wide, 1 - lr * group.weight_decay);
      at::_foreach_sub_(wide, steps, lr * scale_of(scale_, steps.front()));
      write(values, wide, options);
    }
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

  /// Groups items whose matrices have one shape, to iterate as one batch on a GPU, which one small matmul does not
  /// fill; at most kMostStacked elements. On other devices each item is alone, since a stack only takes memory.
  static std::vector<std::vector<const Item*>> stacks(const std::vector<Item>& items) {
    std::vector<std::vector<const Item*>> found;
    std::map<std::pair<int64_t, int64_t>, size_t> open;  // index in `found` by shape
    std::map<size_t, int64_t> elements;
    for (const Item& item : items) {
      const std::pair shape(item.value.size(-2), item.value.size(-1));
      const auto it = ops::cuda::on_gpu(item.value) ? open.find(shape) : open.end();
      if (it != open.end() && elements[it->second] + item.value.numel() <= kMostStacked) {
        found[it->second].push_back(&item);
        elements[it->second] += item.value.numel();
        continue;
      }
      open[shape] = found.size();
      elements[found.size()] = item.value.numel();
      found.push_back({&item});
    }
    return found;
  }

  static constexpr int64_t kMostStacked = 32 << 20;

  double momentum_;
  bool nesterov_;
  int64_t steps_;
  MuonScale scale_;
  std::set<std::string> names_;
};

Muon::Muon(const OptimizerConfig& config, const std::vector<ParameterInfo>& parameters)
    : matrices_(std::make_unique<Matrices>(config, parameters)), rest_(config, names_of(parameters)) {}

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
