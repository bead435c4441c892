// Planted bugs of tensor parallelism, in reductions and gathers of activations: each is a valid plan with one plausible
// mistake, and is refused with the name of the module and of the missing or superfluous operation.
#include "test/shard/planted_bugs.h"

#include "lehr/ops/linear/linear.h"

namespace lehr::shard::test {
namespace {

std::vector<Bug<Dense>> bugs() {
  return {
      {"ForgottenReductionAfterAttention",
       kTensor2,
       [](Plan& plan, auto& model) {
         plan.replace(
             "o_proj", [&](auto& c) { lay_out(*first_layer(model).self_attn->o_proj, kTp, Placement::shard(1), c); });
       },
       {"plan: model.layers.0: add: adds its input (shard(1)) to 'other', which is partial on axis tp",
        "reduce_scatter or all_reduce is missing"}},
      {"ForgottenReductionAfterFeedForward",
       kTensor2,
       [](Plan& plan, auto& model) {
         plan.replace(
             "down_proj", [&](auto& c) { lay_out(*first_layer(model).mlp->down_proj, kTp, Placement::shard(1), c); });
       },
       {"plan: model.layers.0: add: ", "partial on axis tp", "reduce_scatter or all_reduce is missing"}},
      {"ForgottenReductionOfEmbeddings",
       kTensor2,
       [](Plan& plan, auto& model) {
         plan.replace("embeddings", [&](auto& c) { lay_out(*model.model->embed_tokens, kTp, Placement::shard(0), c); });
       },
       {"plan: model.layers.0.input_layernorm: ", "partial on axis tp", "reduce_scatter or all_reduce is missing"}},
      {"ForgottenGatherBeforeAttention",
       kTensor2,
       [](Plan& plan, auto&) { plan.leave_out("self_attn"); },
       {"plan: model.layers.0.self_attn.q_proj: linear: its input is shard(1) on axis tp",
        "model.layers.0.self_attn.q_proj.weight is shard(0)",
        "all_gather is missing"}},
      {"ForgottenGatherBeforeFeedForward",
       kTensor2,
       [](Plan& plan, auto&) { plan.leave_out("mlp"); },
       {"plan: model.layers.0.mlp.gate_proj: linear: ", "all_gather is missing"}},
      {"GatherAlongTheWrongDimension",
       kTensor2,
       [](Plan& plan, auto& model) {
         plan.replace("self_attn", [&](auto& c) {
           hook(*first_layer(model).self_attn, [&group = c.group(kTp)](const auto& x, const auto& forward) {
             return forward(mesh::all_gather(x, group, 0));
           });
         });
       },
       {"plan: model.layers.0.self_attn: all_gather: takes input as shard(0) on axis tp, found shard(1)"}},
      {"ScatterAlongTheWrongDimension",
       kTensor2,
       [](Plan& plan, auto& model) {
         plan.replace("down_proj", [&](auto& c) {
           auto& down = *first_layer(model).mlp->down_proj;
           lay_out(down, kTp, Placement::shard(1), c);
           hook(down, [&group = c.group(kTp)](const auto& x, const auto& forward) {
             return mesh::reduce_scatter(forward(x), group, 2);
           });
         });
       },
       {"plan: model.layers.0: add: ", "shard(1) on axis tp", "shard(2)", "different dimensions"}},
      {"AllReduceInThePlaceOfReduceScatter",
       kTensor2,
       [](Plan& plan, auto& model) {
         plan.replace("down_proj", [&](auto& c) {
           auto& down = *first_layer(model).mlp->down_proj;
           lay_out(down, kTp, Placement::shard(1), c);
           hook(down, [&group = c.group(kTp)](const auto& x, const auto& forward) {
             return mesh::all_reduce(forward(x), group);
           });
         });
       },
       {"plan: model.layers.0: add: 'other' is invariant on axis tp, but meets its input, which is shard(1)"}},
      {"SumTakenTwice",
       kTensor2,
       [](Plan& plan, auto& model) {
         plan.replace("down_proj", [&](auto& c) {
           auto& down = *first_layer(model).mlp->down_proj;
           lay_out(down, kTp, Placement::shard(1), c);
           hook(down, [&group = c.group(kTp)](const auto& x, const auto& forward) {
             return mesh::reduce_scatter(mesh::all_reduce(forward(x), group), group, 1);
           });
         });
       },
       {"plan: model.layers.0.mlp.down_proj: reduce_scatter: takes input as partial on axis tp, found invariant",
        "the sum would count it 2 times; this collective is superfluous"}},
      {"SumOfPartsOfTheSequence",
       kTensor2,
       [](Plan& plan, auto& model) {
         plan.follow("o_proj", [&](auto& c) {
           hook(*first_layer(model).self_attn, [&group = c.group(kTp)](const auto& x, const auto& forward) {
             return mesh::all_reduce(forward(x), group);
           });
         });
       },
       {"plan: model.layers.0.self_attn: all_reduce: takes input as partial on axis tp, found shard(1)",
        "a sum would mix them"}},
      {"BiasInsideTheSum",
       kTensor2,
       [](Plan& plan, auto& model) {
         plan.replace("down_proj", [&](auto& c) {
           auto& layer = first_layer(model);
           lay_out(*layer.mlp->down_proj, kTp, Placement::shard(1), c);
           hook(*layer.mlp->down_proj, [&layer, &group = c.group(kTp)](const auto& x, const auto&) {
             const at::Tensor& bias = layer.input_layernorm->weight;  // stands in for a bias
             return mesh::reduce_scatter(ops::linear(x, layer.mlp->down_proj->weight, bias), group, 1);
           });
         });
       },
       {"plan: model.layers.0.mlp.down_proj: linear: adds model.layers.0.input_layernorm.weight (replicate)",
        "it would count once for each rank"}},
      {"OutputProjectionCutAlongItsRows",
       kTensor2,
       [](Plan& plan, auto& model) {
         plan.replace("o_proj", [&](auto& c) { column_parallel(*first_layer(model).self_attn->o_proj, c); });
       },
       {"plan: model.layers.0.self_attn.o_proj: linear: its input is shard(2) on axis tp",
        "o_proj.weight is shard(0)"}},
      {"QueryProjectionCutAlongItsColumns",
       kTensor2,
       [](Plan& plan, auto& model) {
         plan.replace(
             "q_proj", [&](auto& c) { lay_out(*first_layer(model).self_attn->q_proj, kTp, Placement::shard(1), c); });
       },
       {"plan: model.layers.0.self_attn.q_proj: linear: ",
        "q_proj.weight is shard(1) on axis tp",
        "the dimension that the matmul sums over"}},
      {"KeysOfAllHeadsForQueriesOfSome",
       kTensor2,
       [](Plan& plan, auto& model) {
         plan.replace("k_proj", [&](auto& c) { on_parts(*first_layer(model).self_attn->k_proj, c); });
       },
       {"plan: model.layers.0.self_attn: attention: q is shard(2) on axis tp, k replicate", "the keys of other heads"}},
      {"GatherWhoseBackwardForgetsTheSum",
       kTensor2,
       [](Plan& plan, auto& model) {
         plan.replace("mlp", [&](auto& c) {
           hook(*first_layer(model).mlp, [&group = c.group(kTp)](const auto& x, const auto& forward) {
             return forward(mesh::gather_invariant(x, group, 1));
           });
         });
       },
       {"plan: model.layers.0.mlp.gate_proj: linear: its input is invariant on axis tp",
        "enter_replicated is missing"}},
      {"EmbeddingsGatheredBeforeTheBlocks",
       kTensor2,
       [](Plan& plan, auto& model) {
         plan.follow("embeddings", [&](auto& c) {
           hook(*model.model->embed_tokens, [&group = c.group(kTp)](const auto& ids, const auto& forward) {
             return mesh::all_gather(forward(ids), group, 1);
           });
         });
       },
       {"plan: model.layers.0.self_attn: all_gather: takes input as shard(1) on axis tp, found replicate",
        "superfluous"}},
      {"SequenceCutTwice",
       kTensor2,
       [](Plan& plan, auto& model) {
         plan.follow("embeddings", [&](auto& c) {
           hook(*model.model->embed_tokens, [&group = c.group(kTp)](const auto& ids, const auto& forward) {
             return mesh::take_shard(forward(ids), group, 1);
           });
         });
       },
       {"plan: model.embed_tokens: take_shard: takes input as invariant on axis tp, found shard(1)"}},
      {"HeadWithoutTheLossOfASpreadVocabulary",
       kTensor2,
       [](Plan& plan, auto& model) {
         plan.replace("lm_head", [&](auto& c) {
           lay_out(*model.lm_head, kTp, Placement::shard(0), c);
           gather_sequence(*model.lm_head, c);
         });
       },
       {"plan: lm_head: linear_cross_entropy: needs all of the vocabulary, but each rank of tp has a part",
        "shard::vocab_parallel"}},
  };
}

TEST(PlantedBugs, InReductionsAndGathersAreRefused) {
  expect_refused(bugs());
}

}  // namespace
}  // namespace lehr::shard::test
