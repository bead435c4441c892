#include "lehr/meter/operator_costs.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

namespace lehr {

namespace {
double as_double(int64_t value) {
  return static_cast<double>(value);
}

// Size of the matmul of inputs a and b, which are matrices or batches of them.
ProductSize size_of(const OperatorInputs& inputs, size_t a, size_t b) {
  const at::Tensor left = inputs[a].toTensor(), right = inputs[b].toTensor();
  const int64_t k = left.size(-1);
  const int64_t batch = left.dim() == 3 && right.dim() == 3 ? left.size(0) : 1;
  const int64_t rows = k == 0 ? 0 : left.numel() / k / std::max<int64_t>(batch, 1);
  return {.batch = batch, .m = rows, .k = k, .n = right.size(-1)};
}

// Groups split the rows of a, or the terms of the sum.
ProductSize size_of_groups(const OperatorInputs& inputs) {
  const at::Tensor a = inputs[0].toTensor();
  return {.m = a.numel() / std::max<int64_t>(a.size(-1), 1), .k = a.size(-1), .n = inputs[1].toTensor().size(-1)};
}

// Matmul operators by name.
using Size = ProductSize (*)(const OperatorInputs&);
const std::unordered_map<std::string_view, Size>& products() {
  static const std::unordered_map<std::string_view, Size> known{
      {"aten::mm", [](const OperatorInputs& in) { return size_of(in, 0, 1); }},
      {"aten::bmm", [](const OperatorInputs& in) { return size_of(in, 0, 1); }},
      {"aten::addmm", [](const OperatorInputs& in) { return size_of(in, 1, 2); }},
      {"aten::addmm_", [](const OperatorInputs& in) { return size_of(in, 1, 2); }},
      {"aten::baddbmm", [](const OperatorInputs& in) { return size_of(in, 1, 2); }},
      {"aten::baddbmm_", [](const OperatorInputs& in) { return size_of(in, 1, 2); }},
      {"aten::_scaled_mm", [](const OperatorInputs& in) { return size_of(in, 0, 1); }},
      {"aten::_grouped_mm", size_of_groups},
      {"aten::_scaled_grouped_mm", size_of_groups},
      {"aten::addmv",
       [](const OperatorInputs& in) {
         const at::Tensor a = in[1].toTensor();
         return ProductSize{.m = a.size(0), .k = a.size(1), .n = 1};
       }},
      {"aten::dot",
       [](const OperatorInputs& in) { return ProductSize{.m = 1, .k = in[0].toTensor().numel(), .n = 1}; }},
      {"lehr::mm", [](const OperatorInputs& in) { return size_of(in, 0, 1); }},
      {"lehr::mm_", [](const OperatorInputs& in) { return size_of(in, 1, 2); }},
      {"lehr::mm_by_blocks_", [](const OperatorInputs& in) { return size_of(in, 1, 2); }}};
  return known;
}

// FLOPs for q (B, H, T, D), k (B, H', S, D) and v (B, H', S, Dv), which are the inputs from `first` on.
double attention_of(const OperatorInputs& in, size_t first, bool causal) {
  const auto tensor = [&](size_t i) { return in[first + i].toTensor(); };
  const double pairs =
      as_double(tensor(0).numel() / std::max<int64_t>(tensor(0).size(-1), 1)) * as_double(tensor(1).size(-2));
  return (causal ? 1 : 2) * pairs * as_double(tensor(0).size(-1) + tensor(2).size(-1));
}
}  // namespace

double ProductSize::flops() const {
  return 2 * as_double(batch) * as_double(m) * as_double(k) * as_double(n);
}

std::optional<ProductSize> product_size(std::string_view name, const OperatorInputs& inputs) {
  const auto found = products().find(name);
  return found == products().end() ? std::nullopt : std::optional(found->second(inputs));
}

// The causal flag is one of the boolean inputs.
std::optional<double> attention_flops(std::string_view name, const OperatorInputs& in) {
  if (!name.starts_with("aten::_scaled_dot_product_") || in.size() < 3 || name.find("math") != std::string_view::npos) {
    return std::nullopt;
  }
  const bool backward = name.find("_backward") != std::string_view::npos;
  const size_t first = backward ? 1 : 0;
  if (in.size() < first + 3 || !in[first].isTensor() || !in[first + 2].isTensor()) {
    return std::nullopt;
  }
  const bool causal =
      std::any_of(in.begin(), in.end(), [](const c10::IValue& input) { return input.isBool() && input.toBool(); });
  return (backward ? 2 : 1) * attention_of(in, first, causal);
}

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
      "detach",    // within aten::detach
      "aten::to",  // a conversion is an operator within it
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
  return name.starts_with("aten::empty") || names.contains(name);
}

bool makes_room(std::string_view name) {
  return name.starts_with("aten::empty") || name.starts_with("aten::resize");
}

bool only_writes_first(std::string_view name) {
  return name == "aten::copy_" || name == "aten::fill_" || name == "aten::zero_";
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

}  // namespace lehr
