#include "lehr/search/scores.h"

#include <fstream>

#include "lehr/base/file.h"
#include "lehr/config/json.h"
#include "lehr/meter/operation_meter.h"
#include "lehr/nn/head.h"
#include "test/search/support.h"

namespace lehr::search {

namespace {
using prune::testing::error_of;
using testing::families;
using testing::LayerShape;
using testing::Teacher;

struct Family {
  std::string type;
  std::vector<LayerShape> layers;
  bool first_is_dense = false;  // stated by mlp_only_layers, as in published folders, instead of block configs
  std::vector<int64_t> windows = {};
};

std::ostream& operator<<(std::ostream& out, const Family& family) {
  return out << family.type;
}

// The whole child as an ordinary model folder.
std::shared_ptr<nn::Model> realised(const Teacher& teacher, const Choice& choice, const std::filesystem::path& folder) {
  prune::write_pruned({.model = teacher.folder, .output = folder}, pruning_of(teacher.space, choice), families());
  return pretrained::ModelFolder::open(folder, families()).load(at::kCPU, teacher.pieces.dtype());
}

std::shared_ptr<nn::Model> whole_teacher(const Teacher& teacher) {
  return pretrained::ModelFolder::open(teacher.folder, families()).load(at::kCPU, teacher.pieces.dtype());
}

// Sums of a comparison of two whole models, written out with all logits.
DivergenceSums reference(const Teacher& teacher, nn::Model& child) {
  const at::NoGradGuard no_grad;
  DivergenceSums sums;
  const auto whole = whole_teacher(teacher);
  for (const auto stream = teacher.data().open(); const auto batch = stream->next();) {
    nn::ModelInputs inputs = teacher.task.build_forward_inputs(*batch);
    inputs.labels = at::Tensor();
    const at::Tensor x = whole->forward(inputs).hidden_states, y = child.forward(inputs).hidden_states;
    const at::Tensor p = at::softmax(whole->logits(x), -1), q = at::softmax(child.logits(y), -1);
    const at::Tensor counted = batch->at("labels").ne(nn::kIgnoreIndex);
    const auto sum = [&](const at::Tensor& per_token) { return per_token.masked_select(counted).sum().item<double>(); };
    sums.tokens += counted.sum().item<int64_t>();
    sums.kl += sum((p * (p / q).log()).sum(-1));
    sums.nll += sum(-q.gather(-1, batch->at("labels").clamp_min(0).unsqueeze(-1)).squeeze(-1).log());
    sums.agreement += sum(p.argmax(-1).eq(q.argmax(-1)).to(at::kDouble));
    sums.cosine += sum(1 - at::cosine_similarity(x, y, -1));
    sums.mse += sum((x - y).square().sum(-1) / x.square().sum(-1));
  }
  return sums;
}

class SearchScores : public prune::testing::ModelsInFolders, public ::testing::WithParamInterface<Family> {
 protected:
  SearchScores() {
    write("teacher", GetParam().type, GetParam().layers);
    if (GetParam().first_is_dense) {
      Node config = parse_json_file(at("teacher") / "config.json");
      config.erase("block_configs");
      Node dense = Node::make_list();
      dense.push_back(Node(int64_t{0}));
      config.set("mlp_only_layers", std::move(dense));
      write_file_atomically(at("teacher") / "config.json", to_json(config));
    }
  }

  static SpaceConfig config() {
    SpaceConfig config;
    config.windows = GetParam().windows;
    return config;
  }
};

TEST_P(SearchScores, PiecesOneAfterAnotherHaveTheBitsOfTheWholeModel) {
  const at::NoGradGuard no_grad;
  for (const auto dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
    const Teacher teacher(at("teacher"), config(), dtype);
    const auto whole = whole_teacher(teacher);
    const auto batch = *teacher.data().open()->next();
    nn::ModelInputs inputs = teacher.task.build_forward_inputs(batch);
    std::vector<Piece> layers;
    for (int64_t layer = 0; layer < teacher.pieces.num_layers(); ++layer) {
      layers.push_back(teacher.library.layer(layer, 0, 0));
    }
    const Piece embeddings = teacher.library.embeddings(), head = teacher.library.head();
    const PrefixPass pass(embeddings, layers, head, inputs);
    inputs.labels = at::Tensor();
    const at::Tensor wanted = whole->forward(inputs).hidden_states;
    EXPECT_TRUE(at::equal(pass.output(), wanted)) << dtype;
    EXPECT_TRUE(at::equal(head->logits(pass.output()), whole->logits(wanted))) << dtype;
  }
}

// Every second variant unless LEHR_ALL_MESHES=1.
TEST_P(SearchScores, OfAVariantHaveTheBitsOfItsWholeModel) {
  const Teacher teacher(at("teacher"), config());
  ScoreRecords records(at("scores.jsonl"));
  const SpaceScores scores = score_space(
      teacher.library, teacher.data(), "t", teacher_choice(teacher.space), records, [](int64_t, int64_t) {});
  ASSERT_EQ(scores.of.size(), alternatives(teacher.space).size());
  int64_t children = 0;
  for (const auto& [place, sums] : test::every_nth(2, scores.of)) {
    Choice choice = teacher_choice(teacher.space);
    choice.of(place) = place.variant;
    // The same modules with the same weights, so that even the last bits agree.
    EXPECT_EQ(measure(teacher.library, teacher.data(), choice), sums) << describe(teacher.space, place);
    if (++children % 3 != 0) {
      continue;  // every third one as a folder
    }
    const auto child = realised(teacher, choice, at(fmt::format("child{}", children)));
    const DivergenceSums wanted = reference(teacher, *child);
    EXPECT_EQ(sums.tokens, wanted.tokens);
    EXPECT_EQ(sums.agreement, wanted.agreement);
    // Float64 sums in another order, of values of about 1.
    EXPECT_NEAR(sums.kl, wanted.kl, 1e-11) << describe(teacher.space, place);
    EXPECT_NEAR(sums.nll, wanted.nll, 1e-10);
    EXPECT_NEAR(sums.cosine, wanted.cosine, 1e-11);
    EXPECT_NEAR(sums.mse, wanted.mse, 1e-11);
    EXPECT_GT(sums.kl, 0) << describe(teacher.space, place);
  }
}

TEST_P(SearchScores, AroundAChildHaveTheBitsOfTheWholeModels) {
  const Teacher teacher(at("teacher"), config());
  Choice base = teacher_choice(teacher.space);
  for (const Place& place : alternatives(teacher.space)) {
    base.of(place) = place.layer % 2 == 0 ? place.variant : 0;
  }
  ScoreRecords records(at("scores.jsonl"));
  const SpaceScores scores = score_space(teacher.library, teacher.data(), "t", base, records, [](int64_t, int64_t) {});
  EXPECT_EQ(scores.of_base, measure(teacher.library, teacher.data(), base));
  EXPECT_EQ(scores.of.size() + 2 * teacher.space.size(), all_variants(teacher.space).size());
  for (size_t i = 0; i < scores.of.size(); i += 3) {
    const auto& [place, sums] = scores.of[i];
    Choice choice = base;
    choice.of(place) = place.variant;
    EXPECT_EQ(measure(teacher.library, teacher.data(), choice), sums) << describe(teacher.space, place);
  }
}

TEST_P(SearchScores, RunOnlyTheLayersFromAReplacementOn) {
  const Teacher teacher(at("teacher"), config());
  ScoreRecords records(at("scores.jsonl"));
  const SpaceScores scores = score_space(
      teacher.library, teacher.data(), "t", teacher_choice(teacher.space), records, [](int64_t, int64_t) {});
  int64_t wanted = teacher.pieces.num_layers();  // the teacher's own
  for (const Place& place : alternatives(teacher.space)) {
    wanted += teacher.pieces.num_layers() - place.layer;
  }
  EXPECT_EQ(scores.layer_forwards, 2 * wanted);  // of two batches
}

TEST_P(SearchScores, OfAWholeChildAreThoseOfItsFolder) {
  const Teacher teacher(at("teacher"), config());
  Choice choice = teacher_choice(teacher.space);
  for (const Place& place : alternatives(teacher.space)) {
    // Some variant of every other sub-block.
    choice.of(place) = place.layer % 2 == 0 ? place.variant : 0;
  }
  const auto child = realised(teacher, choice, at("child"));
  const DivergenceSums sums = measure(teacher.library, teacher.data(), choice);
  const DivergenceSums wanted = reference(teacher, *child);
  EXPECT_NEAR(sums.kl, wanted.kl, 1e-11);  // float64 sums in another order
  EXPECT_EQ(teacher.pieces.args().block_configs().size(), blocks_of(teacher.space, choice).size());
  EXPECT_EQ(prune::testing::blocks_of(at("child")), blocks_of(teacher.space, choice));
}

TEST_P(SearchScores, AreMeasuredOnceForTheSameContent) {
  const auto count = [](int64_t* measured) { return [measured](int64_t, int64_t all) { *measured = all; }; };
  SpaceConfig some = config();
  some.attention_no_op = false;
  int64_t all = 0;
  {
    const Teacher teacher(at("teacher"), some);
    ScoreRecords records(at("scores.jsonl"));
    score_space(teacher.library, teacher.data(), "t", teacher_choice(teacher.space), records, count(&all));
    EXPECT_EQ(static_cast<int64_t>(records.size()), all);
  }
  // A search that was stopped while it wrote a line.
  std::string text = read_file(at("scores.jsonl"));
  const size_t last_line = text.rfind('\n', text.size() - 2) + 1;
  std::ofstream(at("scores.jsonl"), std::ios::trunc) << text.substr(0, last_line + 5);
  const Teacher teacher(at("teacher"), config());
  ScoreRecords records(at("scores.jsonl"));
  EXPECT_EQ(static_cast<int64_t>(records.size()), all - 1);
  const SpaceScores scores =
      score_space(teacher.library, teacher.data(), "t", teacher_choice(teacher.space), records, count(&all));
  ScoreRecords anew(at("anew.jsonl"));
  const SpaceScores wanted =
      score_space(teacher.library, teacher.data(), "t", teacher_choice(teacher.space), anew, count(&all));
  EXPECT_LT(scores.layer_forwards, wanted.layer_forwards);
  EXPECT_EQ(scores.of_base, wanted.of_base);
  EXPECT_EQ(scores.of, wanted.of);
  EXPECT_EQ(records.size(), anew.size());
}

TEST_P(SearchScores, ThatRanksShareAreThoseOfOneRank) {
  const Teacher teacher(at("teacher"), config());
  const Choice base = teacher_choice(teacher.space);
  int64_t wanted_count = 0, count = 0;
  ScoreRecords alone(at("alone.jsonl"));
  const SpaceScores wanted =
      score_space(teacher.library, teacher.data(), "t", base, alone, [&](int64_t, int64_t all) { wanted_count = all; });
  constexpr int64_t kRanks = 3;
  std::vector<ScoreRecords> records;  // opened before any rank measures
  for (int64_t rank = 0; rank < kRanks; ++rank) {
    records.emplace_back(at("shared.jsonl"), rank);
  }
  for (int64_t rank = 0; rank < kRanks; ++rank) {
    int64_t own = 0;
    const auto progress = [&](int64_t done, int64_t) { own = done; };
    ScoreRecords& of_rank = records[static_cast<size_t>(rank)];
    score_space(teacher.library, teacher.data(), "t", base, of_rank, progress, {.rank = rank, .ranks = kRanks});
    EXPECT_LE(std::abs(own - wanted_count / kRanks), 1) << rank;
    count += own;
  }
  EXPECT_EQ(count, wanted_count);
  const auto read = [&] {
    ScoreRecords all = ScoreRecords::of_all_ranks(at("shared.jsonl"));
    return score_space(
        teacher.library, teacher.data(), "t", base, all, [](int64_t, int64_t) {}, WorkShare::none());
  };
  const SpaceScores found = read();
  EXPECT_EQ(found.missing, 0);
  EXPECT_EQ(found.layer_forwards, 0);
  EXPECT_EQ(found.of_base, wanted.of_base);
  EXPECT_EQ(found.of, wanted.of);
  // While the first rank writes its last line, nothing is measured in its place, and its file stays as it is.
  const std::string text = read_file(at("shared.jsonl"));
  const std::string growing = text.substr(0, text.size() - 5);
  std::ofstream(at("shared.jsonl"), std::ios::trunc) << growing;
  const SpaceScores early = read();
  EXPECT_EQ(early.missing, 1);
  EXPECT_EQ(early.layer_forwards, 0);
  EXPECT_EQ(read_file(at("shared.jsonl")), growing);
}

TEST_P(SearchScores, MultiplyOutALinearLayerOnce) {
  const Teacher teacher(at("teacher"), config());
  int64_t tested = 0;
  for (const Place& place : alternatives(teacher.space)) {
    const descriptor::BlockConfig& block = search::at(teacher.space, place).block;
    if (place.subblock == pretrained::Subblock::attention ? !block.attention_is_linear() : !block.ffn_is_linear()) {
      continue;
    }
    OperationMeter meter;
    const Piece once = teacher.library.layer(place);
    EXPECT_GT(meter.counts().matmul_flops, 0);
    meter.reset();
    const Piece twice = teacher.library.layer(place);
    EXPECT_EQ(meter.counts().matmul_flops, 0) << describe(teacher.space, place);
    const auto wanted = prune::testing::weights_of(*once), found = prune::testing::weights_of(*twice);
    for (const auto& [name, weight] : wanted) {
      EXPECT_TRUE(at::equal(found.at(name), weight)) << name;
    }
    ++tested;
  }
  const std::string type = GetParam().type;
  EXPECT_EQ(tested > 0, type != "deepseek_v3" && type != "qwen3_next") << "families without linear layers";
}

// The laws of the axis: a variant has the weights of the one without a window, bit for bit; a window that hides nothing
// changes no bit; and what a token gets from its layer is what it gets if the sequence begins where its window does.
TEST_P(SearchScores, AWindowIsASliceOfTheSequence) {
  const at::NoGradGuard no_grad;
  const Teacher teacher(at("teacher"), config());
  const auto batch = *teacher.data().open()->next();
  const nn::ModelInputs inputs = teacher.task.build_forward_inputs(batch);
  const int64_t tokens = batch.at("input_ids").size(1);
  const at::Tensor x = run_piece(teacher.library.embeddings(), inputs, {});
  int64_t tested = 0;
  for (const Place& place : alternatives(teacher.space)) {
    const Variant& variant = search::at(teacher.space, place);
    const auto* attention = std::get_if<descriptor::AttentionSubblock>(&variant.block.attention);
    if (variant.keeps.window == 0 || attention == nullptr) {
      continue;
    }
    const Piece windowed = teacher.library.layer(place);
    descriptor::BlockConfig other = variant.block;
    const auto with_window = [&](int64_t window) {
      std::get<descriptor::AttentionSubblock>(other.attention).window = window;
      const Piece piece = teacher.pieces.layer(place.layer, other);
      auto weights = prune::testing::weights_of(*windowed);
      for (const auto& [name, parameter] : nn::named_parameters(*piece)) {
        const at::Tensor value = parameter->value();
        value.copy_(weights.at(name));
      }
      return piece;
    };
    const Piece whole = with_window(tokens);
    Place without = place;
    while (search::at(teacher.space, without).keeps.window != 0) {
      --without.variant;  // the largest window comes first, after the variant without one
    }
    ASSERT_EQ(search::at(teacher.space, without).keeps.kv_heads, variant.keeps.kv_heads);
    const Piece slice = teacher.library.layer(without);
    for (const auto& [name, weight] : prune::testing::weights_of(*slice)) {
      EXPECT_TRUE(at::equal(weight, prune::testing::weights_of(*windowed).at(name))) << name;
    }
    const at::Tensor found = run_piece(windowed, inputs, x);
    const at::Tensor all = run_piece(with_window(tokens + 5), inputs, x);
    EXPECT_TRUE(at::equal(run_piece(whole, inputs, x), all)) << "a window that hides nothing";
    EXPECT_FALSE(at::equal(found, all));
    for (const int64_t token : {int64_t{0}, variant.keeps.window - 1, variant.keeps.window, tokens - 1}) {
      const int64_t first = std::max<int64_t>(0, token + 1 - variant.keeps.window), count = token + 1 - first;
      nn::ModelInputs seen = inputs;
      seen.position_ids = batch.at("position_ids").narrow(1, first, count);
      const at::Tensor wanted = run_piece(whole, seen, x.narrow(1, first, count)).select(1, count - 1);
      EXPECT_LE((found.select(1, token) - wanted).abs().max().item<double>(), 1e-12 * wanted.abs().max().item<double>())
          << describe(teacher.space, place) << ", token " << token;
    }
    ++tested;
  }
  EXPECT_EQ(tested > 0, !GetParam().windows.empty());
}

// Without LEHR_ALL_MESHES=1, a family that differs little from another is left to the other tests of searches.
std::vector<Family> tested_families() {
  std::vector<Family> found{
      {"qwen3", model::test::kWithHoles},
      {"smollm3", model::test::kMixed},
      {"mixtral", model::test::kMixtures},
      {"minimax_m2", model::test::kMixtures},
      {"glm4_moe", model::test::kSharedMixtures},
      {"deepseek_v3", model::test::kLatentMixtures},
      {"qwen3_next", model::test::kDeltaMixtures},
      {"qwen3_moe", {{4, 32}, {4, 8, 6, 2}, {4, 8, 6, 2}}, true},
      {"gemma3_text", {{2, 16, 0, 0, 0, 7}, {4, 32}, {2, 24}}, false, {2, 5}}};
  if (test::all_meshes()) {
    for (const Family& family : std::vector<Family>{
             {"qwen3", model::test::kMixed},
             {"llama", model::test::kMixed},
             {"gemma3_text", model::test::kMixed},
             {"qwen3_moe", model::test::kMixtures},
             {"qwen3", {{4, 32}, {2, 16}, {4, 24}}, false, {5}}}) {
      found.push_back(family);
    }
  }
  return found;
}

INSTANTIATE_TEST_SUITE_P(Families, SearchScores, ::testing::ValuesIn(tested_families()), [](const auto& tested) {
  return fmt::format("{}_{}", tested.param.type, tested.index);
});
}  // namespace

}  // namespace lehr::search
