// The experts of an MoE layer: feed-forward blocks computed by grouped matmuls.
#pragma once

#include <map>
#include <optional>

#include "lehr/nn/module.h"
#include "lehr/ops/clamped_swiglu/clamped_swiglu.h"
#include "lehr/ops/grouped_linear/grouped_weight.h"
#include "lehr/ops/linear_float8/linear_float8.h"
#include "lehr/ops/token_permutation/token_permutation.h"

namespace lehr::nn {

/// An adapter whose output is added to a GroupedLinear's, like LinearAdapter for a Linear.
class GroupedLinearAdapter : public Module {
 public:
  /// Maps token copies of the groups first, first + 1, ..., one for each of `ends`, (N, in_features), sorted by group,
  /// to (N, out_features).
  virtual at::Tensor forward(const at::Tensor& rows, const at::Tensor& ends, int64_t first) = 0;
};

/// Which groups a grouped linear layer multiplies. All of them at once, or a part of them by a weight whose gradient is
/// computed after all parts (GroupedExperts::weights).
struct GroupPart {
  const ops::GroupedWeight* weight = nullptr;  ///< Null: all groups.
  int64_t first = 0;
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

  /// Maps token copies sorted by group, (N, in_features), to (N, out_features); see ops::grouped_linear for `ends`,
  /// which has one value for each group of the part.
  at::Tensor forward(const at::Tensor& rows, const at::Tensor& ends, GroupPart part = {});

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
  bool gelu_tanh = false;     ///< The gate is Gelu::tanh of the projection: GeGLU (Gemma 4); excludes the two before.
};

/// The weights of experts in one forward pass that computes them in parts.
using ExpertWeights = std::map<const GroupedLinearImpl*, ops::GroupedWeight>;

/// Some experts: first, first + 1, ... Without weights, all of them at once.
struct ExpertPart {
  const ExpertWeights* weights = nullptr;
  int64_t first = 0;
  GroupPart of(const GroupedLinear& layer) const;
};

/// down_proj(silu(gate_proj(x)) * up_proj(x)) for every expert, the same with GELU, down_proj(clamped_swiglu(
/// gate_up_proj(x))), or down_proj(relu(up_proj(x))^2).
class GroupedExpertsImpl : public Module {
 public:
  GroupedExpertsImpl(
      int64_t num_experts,
      int64_t hidden_size,
      int64_t intermediate_size,
      Init init = Init::normal(0.02),
      const ExpertOptions& options = {});

  /// Maps token copies sorted by expert, (N, hidden_size), to (N, hidden_size). `ends` has one value for each expert of
  /// the part; each expert must be in one part of a forward pass.
  at::Tensor forward(const at::Tensor& rows, const at::Tensor& ends, ExpertPart part = {});

  /// The weights for a forward pass in parts. Call it before the rows of the first part are waited for
  /// (ops/grouped_linear/grouped_weight.h).
  ExpertWeights weights() const;

  GroupedLinear gate_proj{nullptr};     // null with a clamp, and without a gate
  GroupedLinear up_proj{nullptr};       // null with a clamp
  GroupedLinear gate_up_proj{nullptr};  // null without a clamp; weight (E, 2I, H), whose even rows are the gate's
  GroupedLinear down_proj{nullptr};

 private:
  std::optional<ops::SwiGLUClamp> clamp_;
  bool gelu_tanh_;
};
LEHR_MODULE(GroupedExperts);

}  // namespace lehr::nn
