// Shared code of the tests of planted bugs: the right plan of a model in named steps, one of which a bug replaces.
#pragma once

#include <gmock/gmock.h>

#include <cstdio>
#include <cstdlib>

#include "lehr/mesh/collectives.h"
#include "lehr/model/qwen3_dense/family.h"
#include "lehr/model/qwen3_moe/family.h"
#include "lehr/shard/context_parallel.h"
#include "lehr/shard/expert_parallel.h"
#include "lehr/shard/ownership.h"
#include "lehr/shard/plan_check.h"
#include "lehr/shard/tensor_parallel.h"
#include "lehr/shard/vocab_parallel.h"
#include "test/shard/plans.h"

namespace lehr::shard::test {

using mesh::DistributedContext;
using ::testing::HasSubstr;

inline const std::string& kTp = mesh::axis::tp;

// A parallel style as one lambda.
class Hook : public nn::CallHook {
 public:
  using Body = std::function<at::Tensor(const at::Tensor& input, const Forward& forward)>;
  explicit Hook(Body body) : body_(std::move(body)) {}
  at::Tensor call(const at::Tensor& input, const Forward& forward) override { return body_(input, forward); }

 private:
  Body body_;
};

inline void hook(nn::Module& module, Hook::Body body) {
  module.add_call_hook(std::make_shared<Hook>(std::move(body)));
}

inline void lay_out(
    nn::Module& module, const std::string& axis, Placement placement, const DistributedContext& context) {
  for (const auto& [name, parameter] : nn::named_parameters(module)) {
    parameter->lay_out(axis, placement, context.index(axis), context.size(axis));
  }
}

// Lays out the remaining dimensions like fully_shard.
inline void lay_out_rest(nn::Module& root, const DistributedContext& context) {
  for (const auto& [name, parameter] : nn::named_parameters(root)) {
    const bool named = parameter->layout().find(kTp) != nullptr || context.size(kTp) == 1 ||
                       domain_axes(*parameter)[1] == mesh::axis::ep_shard || name.find("router") != std::string::npos;
    const std::string axis = domain_axes(*parameter)[1];
    if (context.size(axis) > 1 && parameter->layout().find(axis) == nullptr) {
      parameter->lay_out(axis, Placement::shard(0), context.index(axis), context.size(axis));
    }
    if (named) {  // otherwise a style was forgotten
      replicate_elsewhere(*parameter, context);
    }
  }
}

using Style = std::function<void(DistributedContext&)>;

// A plan in named steps; a bug replaces a step or follows it.
class Plan {
 public:
  void add(const std::string& name, Style style) { steps_.emplace_back(name, std::move(style)); }
  void replace(const std::string& name, Style style) { at(name) = std::move(style); }
  void leave_out(const std::string& name) {
    at(name) = [](DistributedContext&) {};
  }
  void follow(const std::string& name, Style more) {
    at(name) = [first = at(name), more = std::move(more)](DistributedContext& context) {
      first(context);
      more(context);
    };
  }
  void apply(DistributedContext& context) const {
    for (const auto& [name, style] : steps_) {
      style(context);
    }
  }

 private:
  Style& at(const std::string& name) {
    for (auto& [known, style] : steps_) {
      if (known == name) {
        return style;
      }
    }
    throw std::out_of_range("no step " + name);
  }
  std::vector<std::pair<std::string, Style>> steps_;
};

// The right plan; steps for layers apply to layer 0.
template <class Model>
Plan right_plan(Model& model) {
  Plan plan;
  auto& backbone = *model.model;
  backbone.set_sequence_parts({});
  plan.add("embeddings", [&](auto& c) { vocab_parallel(*backbone.embed_tokens, c); });
  for (auto& [index, layer] : *backbone.layers) {
    const std::string at = index == 0 ? "" : std::to_string(index) + ".";
    auto& block = *layer;
    auto& attention = *layer->self_attn;
    plan.add(at + "input_layernorm", [&](auto& c) { on_parts(*block.input_layernorm, c); });
    plan.add(at + "self_attn", [&](auto& c) { gather_sequence(attention, c); });
    plan.add(at + "q_proj", [&](auto& c) { column_parallel(*attention.q_proj, c); });
    plan.add(at + "k_proj", [&](auto& c) { column_parallel(*attention.k_proj, c); });
    plan.add(at + "v_proj", [&](auto& c) { column_parallel(*attention.v_proj, c); });
    plan.add(at + "q_norm", [&](auto& c) { on_parts(*attention.q_norm, c); });
    plan.add(at + "k_norm", [&](auto& c) { on_parts(*attention.k_norm, c); });
    plan.add(at + "o_proj", [&](auto& c) { row_parallel(*attention.o_proj, c); });
    plan.add(at + "post_attention_layernorm", [&](auto& c) { on_parts(*block.post_attention_layernorm, c); });
    if (layer->mlp) {
      plan.add(at + "mlp", [&](auto& c) { gather_sequence(*block.mlp, c); });
      plan.add(at + "gate_proj", [&](auto& c) { column_parallel(*block.mlp->gate_proj, c); });
      plan.add(at + "up_proj", [&](auto& c) { column_parallel(*block.mlp->up_proj, c); });
      plan.add(at + "down_proj", [&](auto& c) { row_parallel(*block.mlp->down_proj, c); });
    }
    if constexpr (requires { block.experts; }) {
      if (block.experts) {
        plan.add(at + "experts", [&](auto& c) { parallelize_experts(c, *block.experts); });
        plan.add(at + "router", [](auto&) {});
      }
    }
  }
  plan.add("norm", [&](auto& c) { on_parts(*backbone.norm, c); });
  if (nn::RouterLosses* losses = model.router_losses()) {
    plan.add("router_losses", [losses](auto& c) { share_router_losses(c, *losses); });
  }
  plan.add("context", [&](auto& c) { parallelize_context(c, model); });
  plan.add("lm_head", [&](auto& c) { vocab_parallel(*model.lm_head, c); });
  plan.add("rest", [&](auto& c) { lay_out_rest(model, c); });
  return plan;
}

using Dense = model::Qwen3DenseForCausalLM;
using Sparse = model::Qwen3MoEForCausalLM;

inline const mesh::DeviceMeshParameters kTensor2{.tensor_parallel = 2};
inline const mesh::DeviceMeshParameters kShard2Tensor2{.data_parallel_shard = 2, .tensor_parallel = 2};
inline const mesh::DeviceMeshParameters kContext2{.context_parallel = 2};
inline const mesh::DeviceMeshParameters kContext2Tensor2{.context_parallel = 2, .tensor_parallel = 2};
inline const mesh::DeviceMeshParameters kReplicate2{.data_parallel_replicate = 2};
inline const mesh::DeviceMeshParameters kShard4Expert2{.data_parallel_shard = 4, .expert_parallel = 2};
inline const mesh::DeviceMeshParameters kTensor2Expert2{.tensor_parallel = 2, .expert_parallel = 2};

template <class Model>
struct Bug {
  std::string name;
  mesh::DeviceMeshParameters mesh;
  std::function<void(Plan& plan, typename Model::Impl& model)> plant;
  std::vector<std::string> words;
  bool tied = false;
};

template <class Model>
std::string problem_with(const Bug<Model>& bug) {
  MeshRank at(bug.mesh, bug.mesh.world_size() - 1);
  auto params = small<Model>();
  params.tie_word_embeddings = bug.tied;
  Model model = build<Model>(params);
  Plan plan = right_plan(*model);
  if (bug.plant) {
    bug.plant(plan, *model);
  }
  plan.apply(at.context);
  return problem_of([&] { check_plan(at.context, *model); });
}

inline auto& first_layer(auto& model) {
  return *model.model->layers->at(0);
}

/// Expects every bug to be refused with its message, and the plan without it to pass. LEHR_SHOW_BUGS=1 prints the
/// messages.
template <class Model>
void expect_refused(const std::vector<Bug<Model>>& bugs) {
  for (const Bug<Model>& bug : bugs) {
    const std::string problem = problem_with(bug);
    for (const std::string& word : bug.words) {
      EXPECT_THAT(problem, HasSubstr(word)) << bug.name;
    }
    const Bug<Model> none{"", bug.mesh, {}, {}, bug.tied};
    EXPECT_EQ(problem_with(none), "") << bug.name << ": the plan is refused without the bug too";
    if (std::getenv("LEHR_SHOW_BUGS") != nullptr) {
      std::printf("%s\n    %s\n", bug.name.c_str(), problem.c_str());
    }
  }
}

}  // namespace lehr::shard::test
