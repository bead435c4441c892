// The experts of an MoE layer: SwiGLU blocks computed by grouped matmuls.
#pragma once

#include "lehr/nn/module.h"
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
  GroupedLinearImpl(int64_t num_groups, int64_t in_features, int64_t out_features, Init init = Init::normal(0.02));

  /// Maps token copies sorted by group, (N, in_features), to (N, out_features); see ops::grouped_linear for `ends`.
  at::Tensor forward(const at::Tensor& rows, const at::Tensor& ends);

  /// See LinearImpl::set_adapter.
  void set_adapter(const std::string& name, std::shared_ptr<GroupedLinearAdapter> adapter);
  void remove_adapter();
  const std::shared_ptr<GroupedLinearAdapter>& adapter() const { return adapter_; }

  at::Tensor weight;

 private:
  std::shared_ptr<GroupedLinearAdapter> adapter_;
  std::string adapter_name_;
};
LEHR_MODULE(GroupedLinear);

/// down_proj(silu(gate_proj(x)) * up_proj(x)) for every expert.
class GroupedSwiGLUImpl : public Module {
 public:
  GroupedSwiGLUImpl(
      int64_t num_experts, int64_t hidden_size, int64_t intermediate_size, Init init = Init::normal(0.02));

  /// Maps token copies sorted by expert, (N, hidden_size), to (N, hidden_size).
  at::Tensor forward(const at::Tensor& rows, const at::Tensor& ends);

  GroupedLinear gate_proj{nullptr};
  GroupedLinear up_proj{nullptr};
  GroupedLinear down_proj{nullptr};
};
LEHR_MODULE(GroupedSwiGLU);

}  // namespace lehr::nn
