// Kinds of LibTorch's operators by name, as far as training runs them.
#include <algorithm>
#include <unordered_map>

#include "lehr/meter/operator_profile.h"

namespace lehr {

std::string_view name_of(OperatorKind kind) {
  constexpr std::array<std::string_view, kOperatorKinds> kNames{
      "matmul",
      "attention",
      "norms",
      "rotary embedding",
      "activation functions",
      "loss",
      "embedding",
      "MoE routing",
      "optimizer",
      "clipping",
      "communication",
      "data",
      "copies, casts, fills",
      "other operators",
      "between operators"};
  return kNames[static_cast<size_t>(kind)];
}

namespace {
const std::unordered_map<std::string_view, OperatorKind>& by_name() {
  using enum OperatorKind;
  static const std::unordered_map<std::string_view, OperatorKind> known{
      {"aten::mm", matmul},
      {"aten::bmm", matmul},
      {"aten::addmm", matmul},
      {"aten::addmm_", matmul},
      {"aten::baddbmm", matmul},
      {"aten::baddbmm_", matmul},
      {"aten::addmv", matmul},
      {"aten::dot", matmul},
      {"aten::matmul", matmul},
      {"aten::linear", matmul},
      {"aten::_grouped_mm", matmul},
      {"aten::_scaled_grouped_mm", matmul},
      {"aten::_scaled_mm", matmul},
      {"aten::scaled_dot_product_attention", attention},
      {"aten::layer_norm", norm},
      {"aten::native_layer_norm", norm},
      {"aten::native_layer_norm_backward", norm},
      {"aten::rms_norm", norm},
      {"aten::_fused_rms_norm", norm},
      {"aten::_fused_rms_norm_backward", norm},
      {"aten::embedding", embedding},
      {"aten::embedding_backward", embedding},
      {"aten::embedding_dense_backward", embedding},
      {"aten::topk", routing},
      {"aten::sort", routing},
      {"aten::cross_entropy_loss", loss},
      {"aten::log_softmax", loss},
      {"aten::_log_softmax", loss},
      {"aten::_log_softmax_backward_data", loss},
      {"aten::to", copy},
      {"aten::_to_copy", copy},
      {"aten::clone", copy},
      {"aten::contiguous", copy},
      {"aten::copy_", copy},
      {"aten::_foreach_copy_", copy},
      {"aten::cat", copy},
      {"aten::stack", copy},
      {"aten::zeros", copy},
      {"aten::zeros_like", copy},
      {"aten::zero_", copy},
      {"aten::fill_", copy},
      {"aten::ones", copy},
      {"aten::ones_like", copy},
      {"aten::full", copy}};
  return known;
}

// Operator families by name prefix, each with its backward and in-place variants.
OperatorKind by_beginning(std::string_view name) {
  using enum OperatorKind;
  constexpr std::array<std::pair<std::string_view, OperatorKind>, 11> kBeginnings{{
      {"lehr::mm", matmul},
      {"aten::mkldnn_linear", matmul},
      {"aten::_flash_attention_", attention},
      {"aten::_scaled_dot_product_", attention},
      {"aten::silu", activation},
      {"aten::gelu", activation},
      {"aten::relu", activation},
      {"aten::nll_loss", loss},
      {"aten::_fused_adam", optimizer},
      {"aten::_foreach_norm", clipping},
      {"c10d::", communication},
  }};
  const auto found = std::find_if(
      kBeginnings.begin(), kBeginnings.end(), [&](const auto& known) { return name.starts_with(known.first); });
  return found == kBeginnings.end() ? other : found->second;
}
}  // namespace

OperatorKind kind_of_operator(std::string_view name) {
  const auto found = by_name().find(name);
  return found != by_name().end() ? found->second : by_beginning(name);
}

}  // namespace lehr
