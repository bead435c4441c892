// Shared code of the tests of plan checks: a rank of a mesh that sends nothing, and small models.
#pragma once

#include <functional>
#include <string>

#include "lehr/base/error.h"
#include "lehr/mesh/distributed_context.h"
#include "lehr/mesh/fake_transport.h"
#include "lehr/model/heads.h"

namespace lehr::shard::test {

/// One rank's view of a mesh.
struct MeshRank {
  explicit MeshRank(const mesh::DeviceMeshParameters& mesh, int64_t rank = 0)
      : transport(mesh::fake_transport(rank, mesh.world_size())), context(mesh, *transport) {}
  std::unique_ptr<mesh::Transport> transport;
  mesh::DistributedContext context;
};

/// The message of the error that the body ends with; empty if there is none.
inline std::string problem_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

template <class Parameters>
Parameters small_backbone(int64_t intermediate_size = 16, int64_t num_experts = 8) {
  Parameters p{};
  p.layer.hidden_size = 8;
  p.layer.intermediate_size = intermediate_size;
  p.layer.num_attention_heads = 8;
  p.layer.num_key_value_heads = 4;
  p.layer.rms_norm_eps = 1e-6;
  p.layer.head_dim = 4;
  if constexpr (requires { p.layer.moe; }) {
    p.layer.moe = {
        .num_experts = num_experts,
        .num_experts_per_tok = 2,
        .moe_intermediate_size = intermediate_size,
        .mlp_only_layers = {1}};
  }
  p.num_hidden_layers = 2;
  p.rope_base = 100;
  p.max_position_ids = 64;
  p.split_vocab_size = {{"base", 13}, {"added", 4}};
  p.split_vocab_order = {"base", "added"};
  return p;
}

template <class Model>
typename Model::Impl::Parameters small() {
  typename Model::Impl::Parameters params{};
  params.model = small_backbone<decltype(params.model)>();
  return params;
}

template <class Model>
Model build(const typename Model::Impl::Parameters& params) {
  return Model(params, model::PipelineStageInfo{}, nn::HiddenStatesAggregationMode::no, nn::ActivationCheckpointing{});
}

}  // namespace lehr::shard::test
