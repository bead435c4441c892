#include "lehr/base/operation_meter.h"

#include <ATen/record_function.h>

#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "lehr/base/error.h"
#include "lehr/base/recorded_inputs.h"

namespace lehr {

struct OperationMeter::State {
  OperationCounts counts;
  at::CallbackHandle handle = 0;
  std::vector<bool> has_inner;  // of the operators under way, the outermost first
};

namespace {
thread_local OperationMeter::State* t_meter = nullptr;
thread_local int t_recomputed = 0;

void add_flops(double& sum, double flops) {
  sum += flops;
  if (t_recomputed > 0) {
    t_meter->counts.recomputed_flops += flops;
  }
}

double as_double(int64_t value) {
  return static_cast<double>(value);
}

using Inputs = c10::ArrayRef<const c10::IValue>;

// Of a b, as matrices or batches of them.
double product_of(const Inputs& inputs, size_t a, size_t b) {
  return 2 * as_double(inputs[a].toTensor().numel()) * as_double(inputs[b].toTensor().size(-1));
}

// How many floating-point operations one of ATen's matrix products has; by name.
using CountFlops = double (*)(const Inputs&);
const std::unordered_map<std::string_view, CountFlops>& products() {
  static const std::unordered_map<std::string_view, CountFlops> known{
      {"aten::mm", [](const Inputs& in) { return product_of(in, 0, 1); }},
      {"aten::bmm", [](const Inputs& in) { return product_of(in, 0, 1); }},
      {"aten::addmm", [](const Inputs& in) { return product_of(in, 1, 2); }},
      {"aten::addmm_", [](const Inputs& in) { return product_of(in, 1, 2); }},
      {"aten::baddbmm", [](const Inputs& in) { return product_of(in, 1, 2); }},
      {"aten::baddbmm_", [](const Inputs& in) { return product_of(in, 1, 2); }},
      {"aten::_grouped_mm", [](const Inputs& in) { return product_of(in, 0, 1); }},
      {"aten::addmv", [](const Inputs& in) { return 2 * as_double(in[1].toTensor().numel()); }},
      {"aten::dot", [](const Inputs& in) { return 2 * as_double(in[0].toTensor().numel()); }},
      {"mkldnn::_linear_pointwise",
       [](const Inputs& in) { return 2 * as_double(in[0].toTensor().numel()) * as_double(in[1].toTensor().size(0)); }}};
  return known;
}

// Of q (B, H, T, D), k (B, H', S, D) and v (B, H', S, Dv), which begin at input `first`.
double attention_of(const Inputs& in, size_t first, bool causal) {
  const auto tensor = [&](size_t i) { return in[first + i].toTensor(); };
  const double pairs =
      as_double(tensor(0).numel() / std::max<int64_t>(tensor(0).size(-1), 1)) * as_double(tensor(1).size(-2));
  return (causal ? 1 : 2) * pairs * as_double(tensor(0).size(-1) + tensor(2).size(-1));
}

bool starts_with(std::string_view name, std::string_view beginning) {
  return name.substr(0, beginning.size()) == beginning;
}

// ATen's own attention; whether order is causal stands among the flags.
bool count_attention(std::string_view name, const Inputs& in) {
  if (!starts_with(name, "aten::_scaled_dot_product_") || in.size() < 3 ||
      name.find("math") != std::string_view::npos) {
    return false;
  }
  const bool backward = name.find("_backward") != std::string_view::npos;
  const size_t first = backward ? 1 : 0;
  if (in.size() < first + 3 || !in[first].isTensor() || !in[first + 2].isTensor()) {
    return false;
  }
  bool causal = false;
  for (const auto& input : in) {
    causal = causal || (input.isBool() && input.toBool());
  }
  add_flops(t_meter->counts.attention_flops, (backward ? 2 : 1) * attention_of(in, first, causal));
  return true;
}

// What moves nothing, or is only room for others.
bool moves_nothing(std::string_view name) {
  static const std::unordered_set<std::string_view> names{
      "aten::view",
      "aten::_unsafe_view",
      "aten::_reshape_alias",
      "aten::as_strided",
      "aten::t",
      "aten::transpose",
      "aten::permute",
      "aten::narrow",
      "aten::slice",
      "aten::select",
      "aten::expand",
      "aten::unsqueeze",
      "aten::squeeze",
      "aten::alias",
      "aten::detach",
      "aten::detach_",
      "aten::unbind",
      "aten::split",
      "aten::chunk",
      "aten::movedim",
      "aten::unfold",
      "aten::diagonal",
      "aten::set_",
      "aten::resize_",
      "aten::result_type",
      "aten::split_with_sizes",
      "aten::_local_scalar_dense",
      "aten::item",
      "aten::is_nonzero",
      "aten::lift_fresh"};
  return starts_with(name, "aten::empty") || names.contains(name);
}

int64_t bytes_of(const c10::IValue& value) {
  if (value.isTensor()) {
    const at::Tensor& tensor = value.toTensor();
    return tensor.defined() ? static_cast<int64_t>(tensor.nbytes()) : 0;
  }
  int64_t bytes = 0;
  if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorVector()) {
      bytes += tensor.defined() ? static_cast<int64_t>(tensor.nbytes()) : 0;
    }
  }
  return bytes;
}

struct Seen : at::ObserverContext {
  int64_t bytes = 0;     // of inputs
  bool counted = false;  // as a product, or moves nothing
};

std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction& function) {
  auto seen = std::make_unique<Seen>();
  const std::string_view name = function.name();
  const auto inputs = recorded_inputs(function);
  const bool room = starts_with(name, "aten::empty") || starts_with(name, "aten::resize");
  if (!t_meter->has_inner.empty() && !room) {
    t_meter->has_inner.back() = true;
  }
  t_meter->has_inner.push_back(false);
  const auto product = products().find(name);
  if (product != products().end()) {
    add_flops(t_meter->counts.product_flops, product->second(inputs));
    seen->counted = true;
  } else {
    seen->counted = moves_nothing(name) || count_attention(name, inputs);
  }
  if (!seen->counted) {
    const bool only_written = name == "aten::copy_" || name == "aten::fill_" || name == "aten::zero_";
    for (size_t i = only_written ? 1 : 0; i < inputs.size(); ++i) {
      seen->bytes += bytes_of(inputs[i]);
    }
  }
  return seen;
}

void end(const at::RecordFunction& function, at::ObserverContext* context) {
  const auto* seen = static_cast<const Seen*>(context);
  const bool composed = t_meter->has_inner.back();
  t_meter->has_inner.pop_back();
  if (seen->counted || composed) {
    return;
  }
  t_meter->counts.pointwise_bytes += seen->bytes;
  for (const auto& output : function.outputs()) {
    t_meter->counts.pointwise_bytes += bytes_of(output);
  }
}
}  // namespace

OperationMeter::OperationMeter() : state_(std::make_unique<State>()) {
  require(t_meter == nullptr, "operation meter: this thread has one already; they do not nest");
  t_meter = state_.get();
  state_->handle = at::addThreadLocalCallback(at::RecordFunctionCallback(&begin, &end)
                                                  .needsInputs(true)
                                                  .needsOutputs(true)
                                                  .scopes({at::RecordScope::FUNCTION}));
}

OperationMeter::~OperationMeter() {
  at::removeCallback(state_->handle);
  t_meter = nullptr;
}

const OperationCounts& OperationMeter::counts() const {
  return state_->counts;
}

void OperationMeter::reset() {
  state_->counts = {};
}

Recomputed::Recomputed() {
  ++t_recomputed;
}

Recomputed::~Recomputed() {
  --t_recomputed;
}

void report_attention(double flops) {
  if (t_meter != nullptr) {
    add_flops(t_meter->counts.attention_flops, flops);
  }
}

void report_pointwise(std::initializer_list<at::Tensor> tensors) {
  if (t_meter == nullptr) {
    return;
  }
  for (const at::Tensor& tensor : tensors) {
    t_meter->counts.pointwise_bytes += tensor.defined() ? static_cast<int64_t>(tensor.nbytes()) : 0;
  }
}

}  // namespace lehr
