// Planted bugs of gradients, losses, split sequences and modules that no style covers: each is a valid plan with one
// plausible mistake, and is refused with the name of the module and of the missing or superfluous operation.
#include "lehr/shard/context_attention.h"
#include "test/shard/planted_bugs.h"

namespace lehr::shard::test {
namespace {

std::vector<Bug<Dense>> bugs() {
  return {
      {"GradientOfQKNormNotSummedOverHeads",
       kTensor2,
       [](Plan& plan, auto& model) {
         plan.replace("q_norm", [&](auto& c) {
           lay_out(*first_layer(model).self_attn->q_norm, kTp, Placement::invariant(), c);
         });
       },
       {"plan: model.layers.0.self_attn: mul: parameter model.layers.0.self_attn.q_norm.weight is invariant on axis tp",
        "nothing would sum it; lay it out as replicate"}},
      {"GradientOfNormNotSummedOverTheSequence",
       kTensor2,
       [](Plan& plan, auto& model) {
         plan.replace("input_layernorm", [&](auto& c) {
           lay_out(*first_layer(model).input_layernorm, kTp, Placement::invariant(), c);
         });
       },
       {"plan: model.layers.0.input_layernorm: mul: parameter model.layers.0.input_layernorm.weight is invariant",
        "nothing would sum it"}},
      {"GradientNotSummedOverReplicas",
       kReplicate2,
       [](Plan& plan, auto& model) {
         plan.replace("norm", [&](auto& c) {
           lay_out(*model.model->norm, mesh::axis::dp_replicate, Placement::invariant(), c);
         });
       },
       {"plan: model.norm: mul: parameter model.norm.weight is invariant on axis dp_replicate",
        "nothing would sum it"}},
      {"GradientNotSummedOverContext",
       kContext2,
       [](Plan& plan, auto& model) {
         plan.replace(
             "norm", [&](auto& c) { lay_out(*model.model->norm, mesh::axis::fsdp, Placement::invariant(), c); });
       },
       {"plan: model.norm: mul: parameter model.norm.weight is invariant on axis cp", "nothing would sum it"}},
      {"GradientCountedByEveryRank",
       kTensor2,
       [](Plan& plan, auto& model) {
         plan.follow("norm", [&](auto& c) {
           hook(*model.model->norm, [&group = c.group(kTp)](const auto& x, const auto& forward) {
             return forward(mesh::gather_invariant(x, group, 1));
           });
         });
       },
       {"plan: model.norm: mul: parameter model.norm.weight is replicate on axis tp",
        "would count once for each rank; lay it out as invariant"}},
      {"TiedGradientSummedTwice",
       kTensor2,
       [](Plan& plan, auto& model) {
         // The embeddings work on parts of the sequence; the head works on all of it, replicated on all ranks.
         plan.replace("embeddings", [&](auto& c) {
           on_parts(*model.model->embed_tokens, c);
           hook(*model.model->embed_tokens, [&group = c.group(kTp)](const auto& ids, const auto& forward) {
             return forward(mesh::take_shard(ids, group, 1));
           });
         });
         plan.replace("lm_head", [&](auto& c) {
           hook(*model.lm_head, [&group = c.group(kTp)](const auto& x, const auto& forward) {
             return forward(mesh::gather_invariant(x, group, 1));
           });
         });
       },
       {"plan: lm_head: linear_cross_entropy: parameter model.embed_tokens.token_embedding.base.weight",
        "is replicate on axis tp",
        "would count once for each rank"},
       /*tied=*/true},
      {"LossCountedByEveryRankOfTp",
       kTensor2,
       [](Plan& plan, auto& model) {
         plan.replace("lm_head", [&](auto& c) {
           on_parts(*model.lm_head, c);
           gather_sequence(*model.lm_head, c);
         });
       },
       {"plan: the model: logps is replicate on axis tp, where it must be invariant",
        "use gather_invariant instead of all_gather"}},
      {"LossCountedTwiceUnderCp",
       kContext2,
       [](Plan& plan, auto& model) {
         plan.follow("lm_head", [&](auto& c) {
           hook(*model.lm_head, [&group = c.group(mesh::axis::cp)](const auto& x, const auto& forward) {
             return mesh::all_gather(forward(x), group, 1);
           });
         });
       },
       {"plan: the model: logps is replicate on axis cp", "would count each token 2 times"}},
      {"AttentionOverAPartOfTheRow",
       kContext2,
       [](Plan& plan, auto&) { plan.leave_out("context"); },
       {"plan: model.layers.0.self_attn: attention: needs whole sequences, but each rank of cp has a part",
        "shard::parallelize_context"}},
      {"ContextCoreOverTheWrongAxis",
       kContext2Tensor2,
       [](Plan& plan, auto& model) {
         plan.replace("context", [&](auto& c) {
           first_layer(model).self_attn->set_attention_core(
               [&group = c.group(kTp)](
                   const auto& q, const auto& k, const auto& v, const auto& mask, const auto& options) {
                 return all_gather_attention(q, k, v, mask, options, group);
               });
         });
       },
       {"plan: model.layers.0.self_attn: all_gather_attention: needs whole sequences, but each rank of cp has a part"}},
      {"NeighboursTakenFromAPartOfTheRow",
       kContext2,
       [](Plan& plan, auto& model) {
         plan.follow("norm", [&](auto&) {
           hook(*model.model->norm, [](const auto& x, const auto& forward) {
             return forward(x.narrow(1, 1, x.size(1) - 1));  // the next tokens
           });
         });
       },
       {"plan: model.norm: narrow: takes a part of dimension 1, of which each rank of cp has a part only"}},
      {"MeanOverAPartOfTheSequence",
       kTensor2,
       [](Plan& plan, auto& model) {
         plan.follow("norm", [&](auto&) {
           hook(*model.model->norm, [](const auto& x, const auto& forward) {
             return forward(x - x.mean(1, /*keepdim=*/true));
           });
         });
       },
       {"plan: model.norm: mean: needs all of dimension 1, but each rank of tp has a part"}},
      {"UncoveredModule",
       kShard2Tensor2,
       [](Plan& plan, auto&) { plan.leave_out("post_attention_layernorm"); },
       {"plan: model.layers.0.post_attention_layernorm: parameter model.layers.0.post_attention_layernorm.weight",
        "has no placement on axis tp (2 ranks)"}},
      {"PartOfAnotherRank",
       kContext2Tensor2,
       [](Plan& plan, auto& model) {
         plan.replace("norm", [&](auto& c) {
           on_parts(*model.model->norm, c);
           auto& weight = *model.model->norm->own_parameter("weight");
           weight.lay_out(mesh::axis::fsdp, Placement::shard(0), c.index(mesh::axis::dp_shard), 2);
         });
       },
       {"plan: model.norm: parameter model.norm.weight", "expected this rank's part [4:8], found [0:4]"}},
      {"CollectiveThatSaysNothing",
       kTensor2,
       [](Plan& plan, auto& model) {
         plan.follow("norm", [&](auto& c) {
           hook(*model.model->norm, [&group = c.group(kTp)](const auto& x, const auto& forward) {
             at::Tensor y = forward(x).clone();
             group.all_reduce(y);
             return y;
           });
         });
       },
       {"plan: model.norm: all_reduce on axis tp", "states no placements"}},
      {"OperatorThatNobodyKnows",
       kTensor2,
       [](Plan& plan, auto& model) {
         plan.follow("norm", [&](auto&) {
           hook(*model.model->norm, [](const auto& x, const auto& forward) { return forward(at::cumprod(x, 1)); });
         });
       },
       {"plan: model.norm: cumprod: there is no rule"}},
  };
}

TEST(PlantedBugs, InGradientsLossesAndSequencesAreRefused) {
  expect_refused(bugs());
}

}  // namespace
}  // namespace lehr::shard::test
