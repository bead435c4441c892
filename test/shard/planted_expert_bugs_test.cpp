// Planted bugs of expert parallelism: each is a valid plan with one plausible mistake, and is refused with the name of
// the module and of the missing or superfluous operation.
#include "test/shard/planted_bugs.h"

namespace lehr::shard::test {
namespace {

// Token dispatch along an axis that the test chooses.
class OtherWay : public nn::ExpertDispatcher {
 public:
  explicit OtherWay(const mesh::Group& group) : group_(group) {}
  std::unique_ptr<nn::ExpertDispatch> start(const at::Tensor& tokens, const ops::TokenPermutation&) const override {
    operator_watch()->state(
        {.name = "expert_dispatch",
         .ranks = group_.ranks(),
         .inputs = {{"tokens", tokens}},
         .shape = tokens.sizes().vec()});
    return nullptr;
  }

 private:
  const mesh::Group& group_;
};

std::vector<Bug<Sparse>> bugs() {
  return {
      {"ExpertsSpreadWithoutAWayToThem",
       kShard4Expert2,
       [](Plan& plan, auto& model) {
         plan.replace("experts", [&](auto& c) {
           lay_out(*first_layer(model).experts->grouped_experts, mesh::axis::ep, Placement::shard(0), c);
         });
       },
       {"plan: model.layers.0.mlp.grouped_experts.gate_proj: grouped_linear: each rank of ep has other experts",
        "all_to_all is missing"}},
      {"TokensOfAllRanksSentToExperts",
       kTensor2Expert2,
       [](Plan& plan, auto& model) {
         plan.follow("experts", [&](auto& c) { gather_sequence(*first_layer(model).experts, c); });
       },
       {"plan: model.layers.0.mlp: expert_dispatch: sends tokens, which is replicate on axis tp",
        "and count it 2 times"}},
      {"TokensSentOverTheWrongAxis",
       kShard4Expert2,
       [](Plan& plan, auto& model) {
         plan.follow("experts", [&](auto& c) {
           first_layer(model).experts->set_dispatcher(std::make_shared<OtherWay>(c.group(mesh::axis::ep_shard)));
         });
       },
       {"plan: model.layers.0.mlp: expert_dispatch: sends tokens over ranks 1, 3, which are not those of axis ep"}},
      {"ExpertNormOverTheRanksOfDenseWeights",
       kShard4Expert2,
       [](Plan& plan, auto& model) {
         plan.follow("experts", [&](auto& c) {
           lay_out(*first_layer(model).experts->grouped_experts, mesh::axis::fsdp, Placement::replicate(), c);
         });
       },
       {"plan: model.layers.0.mlp.grouped_experts.gate_proj: parameter",
        "is laid out on axis fsdp",
        "norms and checkpoints would count the ranks of both domains"}},
      {"ExpertsLaidOutAsDenseWeights",
       kShard4Expert2,
       [](Plan& plan, auto& model) {
         plan.replace("experts", [&](auto& c) {
           auto& mixture = *first_layer(model).experts;
           parallelize_experts(c, mixture);
           mixture.grouped_experts =
               mixture.replace_module("grouped_experts", nn::GroupedExperts(8, 8, 16, nn::Init::normal(1)));
         });
       },
       {"plan: model.layers.0.mlp.grouped_experts.gate_proj: grouped_linear: the tokens were sent to the ranks of ep",
        "is not shard(0) there"}},
      {"ExpertsCutAlongTheirOutputs",
       kShard4Expert2,
       [](Plan& plan, auto& model) {
         plan.replace("experts", [&](auto& c) {
           lay_out(*first_layer(model).experts->grouped_experts, mesh::axis::ep, Placement::shard(1), c);
         });
       },
       {"plan: model.layers.0.mlp.grouped_experts.gate_proj: grouped_linear: ",
        "gate_proj.weight belongs to the ranks of experts (axis ep)",
        "shard::parallelize_experts"}},
      {"BiasesOfAllExpertsOnEachRank",
       kShard4Expert2,
       [](Plan& plan, auto& model) {
         plan.follow("experts", [&](auto& c) {
           nn::GroupedLinear biased(8, 16, 8, nn::Init::normal(1), /*with_bias=*/true);
           biased->own_parameter("weight")->lay_out(
               mesh::axis::ep, Placement::shard(0), c.index(mesh::axis::ep), c.size(mesh::axis::ep));
           auto& experts = *first_layer(model).experts->grouped_experts;
           experts.down_proj = experts.replace_module("down_proj", biased);
         });
       },
       {"plan: model.layers.0.mlp.grouped_experts.down_proj: ", "down_proj.bias"}},
      {"RouterLossesOfAPartOfTheRow",
       kTensor2Expert2,
       [](Plan& plan, auto&) { plan.leave_out("router_losses"); },
       {"plan: the model: router losses would be computed over a part of each sequence", "shard::share_router_losses"}},
      {"GradientOfTheRouterNotSummed",
       kTensor2Expert2,
       [](Plan& plan, auto& model) {
         plan.replace(
             "router", [&](auto& c) { lay_out(*first_layer(model).experts->router, kTp, Placement::invariant(), c); });
       },
       {"plan: model.layers.0.mlp.router.gate: linear: parameter model.layers.0.mlp.router.gate.weight is invariant",
        "nothing would sum it"}},
  };
}

TEST(PlantedBugs, InMoELayersAreRefused) {
  expect_refused(bugs());
}

}  // namespace
}  // namespace lehr::shard::test
