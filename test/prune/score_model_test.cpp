// The scores of whole models, compared with a decoder in plain ATen, in float64.
#include "lehr/prune/score_model.h"

#include <gmock/gmock.h>

#include <cmath>

#include "lehr/base/error.h"
#include "test/model/plain_decoder.h"
#include "test/shard/one_device.h"

namespace lehr::prune {
namespace {

using namespace model::test;  // NOLINT(google-build-using-namespace): norm, project, attention, ...
using ::testing::HasSubstr;
using Values = std::map<std::pair<int64_t, Kind>, at::Tensor>;

at::Tensor token_ids() {
  at::manual_seed(3);
  return at::randint(kVocabulary, {3, 7});
}

// The second sequence is shorter than the others.
at::Tensor counted() {
  at::Tensor all = at::ones({3, 7}, at::kBool);
  all[1].narrow(0, 4, 3).fill_(false);
  return all;
}

at::Tensor mean_of_counted(const at::Tensor& of_tokens) {
  return of_tokens.index({counted()}).mean(0);
}

at::Tensor column_norms(const at::Tensor& weight) {
  return weight.square().sum(-2).sqrt();
}

at::Tensor turn(const at::Tensor& before, const at::Tensor& added) {
  const at::Tensor after = before + added;
  return mean_of_counted(1 - (before * after).sum(-1) / before.norm(2, -1) / after.norm(2, -1)).view(1);
}

struct Plain {
  Weights weights;
  std::vector<LayerShape> layers;
  std::string model_type;

  // The output of an MoE layer without expert `without`; -1: with all experts.
  at::Tensor mixture(const at::Tensor& x, const std::string& at, const LayerShape& layer, int64_t without) {
    at::Tensor logits = router_logits(x, weights, at).clone();
    if (without >= 0) {
      logits.select(-1, without).fill_(-INFINITY);
    }
    const at::Tensor weight = expert_weights(logits, weights, at, layer, model_type);
    at::Tensor sum = at::zeros_like(x);
    for (int64_t e = 0; e < layer.experts; ++e) {
      sum = sum + weight.select(-1, e).unsqueeze(-1) * expert_output(x, weights, at, e);
    }
    return sum;
  }

  // Of a gated shared expert, the channels are scored before the gate.
  void score_shared(const at::Tensor& x, const std::string& at, int64_t index, Values& found) {
    const std::string shared = at + "shared_expert.";
    const at::Tensor activations =
        inner(x, weights.at(shared + "gate_proj.weight"), weights.at(shared + "up_proj.weight"));
    found[{index, Kind::shared_channels}] =
        mean_of_counted(activations.abs()) * column_norms(weights.at(shared + "down_proj.weight"));
  }

  void score_mixture(const at::Tensor& x, const std::string& at, int64_t index, Values& found) {
    const LayerShape& layer = layers[static_cast<size_t>(index)];
    const at::Tensor chosen = std::get<1>(router_logits(x, weights, at).topk(layer.top_k, -1));  // (B, T, k)
    std::vector<at::Tensor> losses, channels;
    for (int64_t e = 0; e < layer.experts; ++e) {
      const at::Tensor own = chosen.eq(e).any(-1) & counted();
      const at::Tensor loss = (mixture(x, at, layer, -1) - mixture(x, at, layer, e)).square().mean(-1);
      losses.push_back(mean_of_counted(loss * own));
      const at::Tensor activations = expert_inner(x.index({own}), weights, at, e);
      const at::Tensor down = weights.at(at + "grouped_experts.down_proj.weight")[e];
      channels.push_back(
          activations.size(0) == 0 ? at::zeros({layer.width}, at::kDouble)
                                   : activations.abs().mean(0) * column_norms(down));
    }
    found[{index, Kind::experts}] = at::stack(losses);
    found[{index, Kind::expert_channels}] = at::stack(channels);
  }

  // All scores of the model, with the independent method for FFN channels.
  Values scores() {
    at::NoGradGuard no_grad;
    Values found;
    at::Tensor x =
        weights.at("model.embed_tokens.token_embedding.default.weight").index_select(0, token_ids().view(-1));
    x = x.view({3, 7, kHidden}) * kind_of(model_type).embedding_factor;
    for (int64_t index = 0; index < static_cast<int64_t>(layers.size()); ++index) {
      const LayerShape& layer = layers[static_cast<size_t>(index)];
      const std::string at = "model.layers." + std::to_string(index) + ".";
      if (layer.kv_heads > 0 && !has_kv_heads(model_type, index)) {
        const at::Tensor added = attention_branch(x, weights, at, layer, model_type);
        found[{index, Kind::attention}] = turn(x, added);
        x = x + added;
      } else if (layer.kv_heads > 0) {
        const at::Tensor output = weights.at(at + "self_attn.o_proj.weight");
        weights[at + "self_attn.o_proj.weight"] = at::eye(kHeads * kHeadDim, at::kDouble);
        const auto bias = weights.extract(at + "self_attn.o_proj.bias");
        const at::Tensor heads =
            attention(before_attention(x, weights, at, model_type), weights, at + "self_attn.", layer, model_type);
        const int64_t width = kHeads / layer.kv_heads * kHeadDim;
        std::vector<at::Tensor> of_heads;
        for (int64_t head = 0; head < layer.kv_heads; ++head) {
          const at::Tensor part = project(heads.narrow(-1, head * width, width), output.narrow(1, head * width, width));
          of_heads.push_back(mean_of_counted(part.norm(2, -1)));
        }
        found[{index, Kind::kv_heads}] = at::stack(of_heads);
        const at::Tensor projected = bias.empty() ? project(heads, output) : project(heads, output) + bias.mapped();
        const at::Tensor added = after_attention(projected, weights, at, model_type);
        found[{index, Kind::attention}] = turn(x, added);
        x = x + added;
      }
      if (layer.width > 0) {
        const at::Tensor normed = before_ffn(x, weights, at, model_type);
        if (layer.experts > 0) {
          score_mixture(normed, at + "mlp.", index, found);
          if (layer.shared > 0) {
            score_shared(normed, at + "mlp.", index, found);
          }
        } else {
          const bool gelu = kind_of(model_type).gelu;
          const at::Tensor activations =
              inner(normed, weights.at(at + "mlp.gate_proj.weight"), weights.at(at + "mlp.up_proj.weight"), gelu);
          found[{index, Kind::ffn_channels}] =
              mean_of_counted(activations.abs()) * column_norms(weights.at(at + "mlp.down_proj.weight"));
        }
        const at::Tensor added =
            after_ffn(feed_forward(normed, weights, at + "mlp.", layer, model_type), weights, at, model_type);
        found[{index, Kind::ffn}] = turn(x, added);
        x = x + added;
      }
    }
    return found;
  }
};

// Sums of some dozens of terms in another order, and cosines near one: 1e-11 of the largest is a safe bound.
void expect_equal(const Values& found, const Values& wanted) {
  for (const auto& [place, values] : wanted) {
    ASSERT_TRUE(found.contains(place)) << "layer " << place.first << " " << name_of(place.second);
    const double scale = values.abs().max().item<double>();
    EXPECT_GT(scale, 0);
    EXPECT_LE((found.at(place) - values).abs().max().item<double>(), 1e-11 * scale)
        << "layer " << place.first << " " << name_of(place.second) << found.at(place) << values;
  }
  for (const auto& [place, values] : found) {
    EXPECT_TRUE(wanted.contains(place)) << "layer " << place.first << " has no " << name_of(place.second);
  }
}

struct Case {
  std::string name, model_type;
  std::vector<LayerShape> layers;
};

class ScoresOf : public ::testing::TestWithParam<Case> {
 protected:
  ScoresOf() { shard::test::make_real(*model); }

  Values scores(const ScoreOptions& options, const std::vector<int64_t>& rows) {
    ModelScorer scorer(*model, how, static_cast<int64_t>(rows.size()), options);
    int64_t first = 0;
    for (const int64_t count : rows) {
      scorer.forward({.input_ids = token_ids().narrow(0, first, count)}, counted().narrow(0, first, count));
      first += count;
    }
    return scorer.scores();
  }

  std::shared_ptr<nn::Model> model = args_of(GetParam().model_type, GetParam().layers)->build({});
  descriptor::ModelFamily family = family_of(GetParam().model_type);
  const descriptor::ModelDescriptor& how = *family.descriptor;
};
INSTANTIATE_TEST_SUITE_P(
    Families,
    ScoresOf,
    ::testing::Values(
        Case{"Qwen3", "qwen3", kMixed},
        Case{"Llama", "llama", kMixed},
        Case{"Olmo2", "olmo2", kMixed},
        Case{"Qwen3Moe", "qwen3_moe", kMixtures},
        Case{"Qwen2", "qwen2", kMixed},
        Case{"Mistral", "mistral", kMixed},
        Case{"SmolLM3", "smollm3", kMixed},
        Case{"Olmo3", "olmo3", kMixed},
        Case{"Gemma3", "gemma3_text", kMixed},
        Case{"Mixtral", "mixtral", kMixtures},
        Case{"GptOss", "gpt_oss", kOnlyMixtures},
        Case{"Glm4Moe", "glm4_moe", kSharedMixtures},
        Case{"MiniMaxM2", "minimax_m2", kMixtures},
        Case{"DeepseekV3", "deepseek_v3", kLatentMixtures},
        Case{"Qwen3Next", "qwen3_next", kDeltaMixtures},
        Case{"WithHoles", "qwen3", kWithHoles}),
    [](const auto& one) { return one.param.name; });

TEST_P(ScoresOf, AModelEqualTheFormulasOnItsActivations) {
  Plain plain{copies_of(*model), GetParam().layers, GetParam().model_type};
  const Values wanted = plain.scores();
  expect_equal(scores({.ffn = FfnMethod::independent}, {3}), wanted);
  expect_equal(scores({.ffn = FfnMethod::independent}, {1, 2}), wanted);
}

TEST_P(ScoresOf, AModelDoNotChangeTheModel) {
  const at::Tensor before = model->forward({.input_ids = token_ids()}).hidden_states;
  scores({}, {3});
  EXPECT_TRUE(at::equal(model->forward({.input_ids = token_ids()}).hidden_states, before));
  EXPECT_TRUE(model->forward({.input_ids = token_ids()}).hidden_states.requires_grad());
}

class ScoresOfQwen3 : public ScoresOf {};
INSTANTIATE_TEST_SUITE_P(Dense, ScoresOfQwen3, ::testing::Values(Case{"Qwen3", "qwen3", kMixed}));

TEST_P(ScoresOfQwen3, AreLimitedToTheGivenKinds) {
  for (const auto& [place, values] : scores({.kinds = {Kind::kv_heads, Kind::ffn}}, {3})) {
    EXPECT_TRUE(place.second == Kind::kv_heads || place.second == Kind::ffn) << name_of(place.second);
  }
  EXPECT_THAT(
      [&] { scores({.kinds = {Kind::experts}}, {3}); },
      ::testing::ThrowsMessage<Error>(HasSubstr(
          "scores of experts: no layer of the model has them; it has ffn_channels, kv_heads, attention, ffn")));
  model->forward({.input_ids = token_ids()});  // all hooks were removed
}

// With one batch, all channels are ranked at the same time, each by itself.
TEST_P(ScoresOfQwen3, RankChannelsOfOneBatchByTheirMeanContribution) {
  const Values ranks = scores({.kinds = {Kind::ffn_channels}, .ffn = FfnMethod::iterative}, {3});
  const Values sizes = scores({.kinds = {Kind::ffn_channels}, .ffn = FfnMethod::independent}, {3});
  for (const auto& [place, values] : ranks) {
    EXPECT_TRUE(at::equal(values.argsort(), sizes.at(place).argsort())) << "layer " << place.first;
  }
}

// A stream of batches from a list.
class ListStream : public train::BatchStream {
 public:
  explicit ListStream(std::vector<train::Batch> batches) : batches_(std::move(batches)) {}
  std::optional<train::Batch> next() override {
    return next_ < batches_.size() ? std::optional(batches_[next_++]) : std::nullopt;
  }

 private:
  std::vector<train::Batch> batches_;
  size_t next_ = 0;
};

train::Batch batch_of(const at::Tensor& ids, const at::Tensor& counts) {
  return {
      {"input_ids", ids},
      {"labels", ids.masked_fill(~counts, -100)},
      {"position_ids", at::arange(7).expand({ids.size(0), 7})}};
}

TEST_P(ScoresOfQwen3, CountTheTokensOfTheLoss) {
  const train::CausalLMTask task;
  const std::vector<train::Batch> batches{
      batch_of(token_ids().narrow(0, 0, 1), counted().narrow(0, 0, 1)),
      batch_of(at::zeros({2, 7}, at::kLong), at::zeros({2, 7}, at::kBool)),
      batch_of(token_ids().narrow(0, 1, 2), counted().narrow(0, 1, 2))};
  std::vector<std::pair<int64_t, int64_t>> progress;
  const Scores found = score_model(
      *model,
      how,
      {.task = task,
       .open = [&] { return std::make_unique<ListStream>(batches); },
       .progress = [&](int64_t done, int64_t all) { progress.emplace_back(done, all); }});
  expect_equal(found.values, scores({}, {1, 2}));
  EXPECT_THAT(progress, ::testing::ElementsAre(::testing::Pair(1, 2), ::testing::Pair(2, 2)));
  EXPECT_EQ(found.facts.at("num_tokens").as_int(), 18);
  EXPECT_EQ(found.facts.at("num_batches").as_int(), 2);
  EXPECT_EQ(found.facts.at("formulas").entries().size(), 4U);
  EXPECT_THAT(
      [&] {
        score_model(
            *model, how, {.task = task, .open = [&] { return std::make_unique<ListStream>(std::vector{batches[1]}); }});
      },
      ::testing::ThrowsMessage<Error>(HasSubstr("the data has no token that counts")));
}

class ScoresOfMixtures : public ScoresOf {};
INSTANTIATE_TEST_SUITE_P(Sparse, ScoresOfMixtures, ::testing::Values(Case{"Qwen3Moe", "qwen3_moe", kMixtures}));

// Votes are stored for every token; whether they fit into memory is checked before the model runs.
TEST_P(ScoresOfMixtures, ByVotingAreRefusedInAdvanceIfVotesExceedTheMemory) {
  int64_t experts = 0;
  for (const LayerShape& layer : GetParam().layers) {
    experts += layer.experts;
  }
  const train::CausalLMTask task;
  const auto batches = std::vector{batch_of(token_ids(), counted())};
  int64_t done = 0;
  const auto score = [&](ExpertMethod method, int64_t memory) {
    return score_model(
        *model,
        how,
        {.task = task,
         .open = [&] { return std::make_unique<ListStream>(batches); },
         .memory = memory,
         .progress = [&](int64_t, int64_t) { ++done; }},
        {.kinds = {Kind::experts}, .experts = method});
  };
  const int64_t needed = 18 * 2 * experts;  // tokens that count, bytes per token and expert
  EXPECT_THAT(
      [&] { score(ExpertMethod::voting, needed - 1); },
      ::testing::ThrowsMessage<Error>(::testing::AllOf(
          HasSubstr(fmt::format("the votes of 18 tokens take {} bytes each", 2 * experts)), HasSubstr("--max-rows"))));
  EXPECT_EQ(done, 0);
  EXPECT_TRUE(score(ExpertMethod::voting, needed).has(Kind::experts));
  EXPECT_TRUE(score(ExpertMethod::mse, 1).has(Kind::experts));
  EXPECT_EQ(done, 2);
}

TEST(CountedTokens, OfAClassifierAreAllButPadding) {
  const at::Tensor mask = at::tensor({1, 0}, at::kLong).to(at::kBool).view({1, 2});
  EXPECT_TRUE(at::equal(counted_tokens({{"attention_mask", mask}, {"labels", at::zeros({1}, at::kLong)}}), mask));
}

}  // namespace
}  // namespace lehr::prune
