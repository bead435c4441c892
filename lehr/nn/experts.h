// The experts of an MoE layer: feed-forward blocks computed by grouped matmuls.
#pragma once

#include <optional>

#include "lehr/nn/module.h"
#include "lehr/ops/clamped_swiglu/clamped_swiglu.h"
#include "lehr/ops/linear_float8/linear_float8.h"
#include "lehr/ops/token_permutation/token_permutation.h"

namespace lehr::nn {

/// An adapter whose output is added to a GroupedLinear's, like LinearAdapter for a Linear.
class GroupedLinearAdapter : public Module {
 public:
  /// Maps token copies sorted by group, (N, in_features), to (N, out_features).
  virtual at::Tensor forward(const at::Tensor& rows, const at::Tensor& ends) = 0;
};

/// One linear layer per group, with the weights in one tensor (groups, out_features, in_features).
class GroupedLinearImpl : public Module {
 public:
  GroupedLinearImpl(
      int64_t num_groups,
      int64_t in_features,
      int64_t out_features,
      Init init = Init::normal(0.02),
      bool with_bias = false);

  /// Maps token copies sorted by group, (N, in_features), to (N, out_features); see ops::grouped_linear for `ends`.
  at::Tensor forward(const at::Tensor& rows, const at::Tensor& ends);

  /// See LinearImpl::set_adapter.
  void set_adapter(const std::string& name, std::shared_ptr<GroupedLinearAdapter> adapter);
  void remove_adapter();
  const std::shared_ptr<GroupedLinearAdapter>& adapter() const { return adapter_; }

  /// See LinearImpl::set_float8; the operator is ops::grouped_linear_float8.
  void set_float8(ops::Float8Recipe recipe) { float8_ = recipe; }
  const std::optional<ops::Float8Recipe>& float8() const { return float8_; }

  at::Tensor weight;
  at::Tensor bias;  // (groups, out_features), undefined without bias

 private:
  std::shared_ptr<GroupedLinearAdapter> adapter_;
  std::string adapter_name_;
  std::optional<ops::Float8Recipe> float8_;
};
LEHR_MODULE(GroupedLinear);

/// Options in which the experts of models differ.
struct ExpertOptions {
  bool bias = false;                           ///< Biases of all projections.
  std::optional<ops::SwiGLUClamp> clamp = {};  ///< The gate is ops::clamped_swiglu (gpt-oss), and one projection has
                                               ///< the rows of gate and up in turn.
  bool relu_squared = false;  ///< Experts without a gate: ReluSquaredMlp (Nemotron-H); excludes a clamp.
};

/// down_proj(silu(gate_proj(x)) * up_proj(x)) for every expert, down_proj(clamped_swiglu(gate_up_proj(x))), or
/// down_proj(relu(up_proj(x))^2).
class GroupedExpertsImpl : public Module {
 public:
  GroupedExpertsImpl(
      int64_t num_experts,
      int64_t hidden_size,
      int64_t intermediate_size,
      Init init = Init::normal(0.02),
      const ExpertOptions& options = {});

  /// Maps token copies sorted by expert, (N, hidden_size), to (N, hidden_size).
  at::Tensor forward(const at::Tensor& rows, const at::Tensor& ends);

  const std::optional<ops::SwiGLUClamp>& clamp() const { return clamp_; }

  GroupedLinear gate_proj{nullptr};     // null with a clamp, and without a gate
  GroupedLinear up_proj{nullptr};       // null with a clamp
  GroupedLinear gate_up_proj{nullptr};  // null without a clamp; weight (E, 2I, H), whose even rows are the gate's
  GroupedLinear down_proj{nullptr};

 private:
  std::optional<ops::SwiGLUClamp> clamp_;
};
LEHR_MODULE(GroupedExperts);

}  // namespace lehr::nn
