// A small MoE model on meshes, for tests of checkpoints of many ranks.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "lehr/mesh/distributed_context.h"
#include "lehr/mesh/thread_transport.h"
#include "lehr/optim/build_optimizer.h"
#include "lehr/shard/ownership.h"
#include "lehr/train/rank_share.h"
#include "lehr/train/store_coordinator.h"
#include "test/train/support.h"

namespace lehr::train::testing {

/// A Qwen3-MoE of four layers, every second one with eight experts.
inline std::unique_ptr<descriptor::ModelArgs> tiny_experts() {
  return families().from_hf_folder(
      std::filesystem::path(LEHR_SOURCE_DIR) / "test/data/reference/qwen3moe_sparse_step2");
}

/// Shards all parameters in the ways that parallel styles do: tp along rows or columns, fsdp along the remaining rows,
/// ep along experts, ep_shard within them.
inline void lay_out(nn::Model& model, const mesh::DistributedContext& context) {
  for (const auto& entry : nn::named_parameters(model)) {
    const std::string& name = entry.name;
    const nn::ParameterPtr& parameter = entry.parameter;
    const auto cut = [&](const std::string& axis, int64_t dim) {
      if (context.size(axis) > 1) {
        parameter->lay_out(axis, Placement::shard(dim), context.index(axis), context.size(axis));
      }
    };
    if (name.find("grouped_experts") != std::string::npos) {
      if (context.size(mesh::axis::ep) * context.size(mesh::axis::ep_shard) > 1) {
        const auto ep = mesh::axis::ep;  // always given, so that the domain is known
        parameter->lay_out(ep, Placement::shard(0), context.index(ep), context.size(ep));
      }
      cut(mesh::axis::ep_shard, 1);
    } else {
      if (parameter->shape().size() == 2) {
        const bool columns = name.find("o_proj") != std::string::npos || name.find("down_proj") != std::string::npos;
        cut(mesh::axis::tp, columns ? 1 : 0);
      }
      cut(mesh::axis::fsdp, 0);
    }
    shard::replicate_elsewhere(*parameter, context);
  }
}

/// A rank's model and optimizer, laid out and allocated, with values that depend only on the position in the whole
/// tensor.
struct RankModel {
  std::unique_ptr<descriptor::ModelArgs> args = tiny_experts();
  std::shared_ptr<nn::Model> model;
  std::unique_ptr<optim::Optimizer> optimizer;

  /// On one device if `context` is null.
  explicit RankModel(const mesh::DistributedContext* context) {
    pipeline::PipelineStageInfo stage;
    if (context != nullptr) {
      stage = {.current_stage = context->index(mesh::axis::pp), .num_stages = context->size(mesh::axis::pp)};
    }
    model = args->build({.stage = stage});
    if (context != nullptr) {
      lay_out(*model, *context);
    }
    nn::materialize(*model, at::kCPU, at::kFloat);
    optim::OptimizerContext known;
    std::vector<optim::NamedParameter> trained;
    for (const auto& [name, parameter] : nn::named_parameters(*model)) {
      known.parameters.push_back({.name = name, .shape = parameter->shape()});
      trained.push_back({.name = name, .value = parameter->value()});
    }
    optimizer = optim::build_optimizer({}, known);
    optimizer->allocate(trained);
  }

  /// Fills parameters and moments with the numbers of that seed; with zeros for seed 0.
  void fill(uint64_t seed) {
    const at::NoGradGuard no_grad;
    const nn::Init init = seed == 0 ? nn::Init::zeros() : nn::Init::normal(1);
    std::map<std::string, nn::ParameterPtr> parameters;
    for (const auto& [name, parameter] : nn::named_parameters(*model)) {
      parameters[name] = parameter;
      at::Tensor value = parameter->value().detach();
      nn::fill(value, init, seed, name, parameter->box(), parameter->shape());
    }
    for (auto& [name, tensor] : optimizer->state()) {
      const auto& parameter = parameters.at(name.substr(0, name.rfind('.')));
      at::Tensor state = tensor;
      if (state.dim() == 0) {
        state.fill_(static_cast<int64_t>(seed * 100 + name.size()));
      } else {
        nn::fill(state, init, seed, name, parameter->box(), parameter->shape());
      }
    }
  }

  /// All numbers, for a comparison.
  std::map<std::string, at::Tensor> numbers() const {
    std::map<std::string, at::Tensor> all;
    for (const auto& [name, parameter] : nn::named_parameters(*model)) {
      all[name] = parameter->value().detach().clone();
    }
    for (const auto& [name, tensor] : optimizer->state()) {
      all[name] = tensor.clone();
    }
    return all;
  }
};

inline void expect_same_numbers(
    const std::map<std::string, at::Tensor>& a, const std::map<std::string, at::Tensor>& b, const std::string& where) {
  ASSERT_EQ(a.size(), b.size()) << where;
  for (const auto& [name, tensor] : a) {
    ASSERT_TRUE(b.contains(name)) << where << ": " << name;
    EXPECT_TRUE(at::equal(tensor, b.at(name))) << where << ": " << name;
  }
}

/// Runs the body on every rank of a mesh.
inline void on_mesh(
    const mesh::DeviceMeshParameters& parameters,
    const std::function<void(mesh::DistributedContext& context, state::Coordinator& coordinator)>& body) {
  mesh::run_ranks(
      parameters.world_size(),
      [&](mesh::Transport& transport) {
        mesh::DistributedContext context(parameters, transport);
        StoreCoordinator coordinator(transport, "test", std::chrono::seconds(20));
        body(context, coordinator);
      },
      std::chrono::seconds(20));
}

/// A rank's part of a checkpoint.
inline state::CheckpointContents contents_of(
    const RankModel& rank,
    const state::StateMap& map,
    const mesh::DistributedContext* context,
    state::Coordinator& coordinator,
    int64_t step,
    int64_t max_shard_bytes = 40'000) {
  state::CheckpointContents contents{.step = step, .weights = {}, .patience = std::chrono::milliseconds(200)};
  const auto add = [&](const std::string& stem, RankShare share) {
    contents.weights.push_back(
        {.stem = stem,
         .tensors = {},
         .max_shard_bytes = max_shard_bytes,
         .all = context == nullptr
                    ? share.all
                    : of_all_stages(share.all, stored_order(map), *context, coordinator, "all of " + stem),
         .parts = std::move(share.parts)});
  };
  add("model", share_of_parameters(*rank.model, map, context));
  add("optimizer", share_of_optimizer(*rank.optimizer, *rank.model, context));
  if (coordinator.is_main()) {
    contents.texts.emplace_back("config.json", "{}");
    contents.texts.emplace_back("trainer.json", "{}");
  }
  return contents;
}

}  // namespace lehr::train::testing
