// The contrastive loss of the embedding task, and runs that train an embedding model.
#include "lehr/train/embedding_task.h"

#include <gmock/gmock.h>

#include <cmath>
#include <mutex>
#include <numeric>

#include "lehr/metric/metrics_log.h"
#include "lehr/pretrained/model_folder.h"
#include "test/base/error_of.h"
#include "test/train/mesh_support.h"

namespace lehr::train {
namespace {

using testing::checkpoint;
using testing::families;
using testing::Folder;
using ::testing::HasSubstr;
using testing::tiny_run;

constexpr double kTemperature = 0.2;

// Embeddings that a head might return, in float64, some of them similar.
at::Tensor made(int64_t rows, int64_t width = 5) {
  const at::Tensor numbers = at::arange(rows * width, at::kDouble);
  return (numbers * 1.3).sin().view({rows, width}) + (numbers * 0.11).cos().view({rows, width}) * 2;
}

Batch all_valid(int64_t rows) {
  return {{"valid", at::ones({rows}, at::kBool)}};
}

// Written out: for each anchor, the log of the sum over all candidates of exp(cosine / temperature), minus the
// positive's.
struct Reference {
  at::Tensor loss;
  int64_t right = 0;  // anchors whose positive is the most similar candidate
};

Reference reference(const at::Tensor& embeddings, int64_t texts) {
  const int64_t examples = embeddings.size(0) / texts;
  const auto cosine = [&](int64_t a, int64_t b) {
    const at::Tensor x = embeddings[a], y = embeddings[b];
    return (x * y).sum() / ((x * x).sum().sqrt() * (y * y).sum().sqrt());
  };
  Reference result{.loss = at::zeros({}, at::kDouble)};
  for (int64_t i = 0; i < examples; ++i) {
    at::Tensor sum = at::zeros({}, at::kDouble);
    const at::Tensor positive = cosine(i * texts, i * texts + 1) / kTemperature;
    bool right = true;
    for (int64_t j = 0; j < examples; ++j) {
      for (int64_t text = 1; text < texts; ++text) {
        const at::Tensor score = cosine(i * texts, j * texts + text) / kTemperature;
        sum = sum + score.exp();
        right = right && score.item<double>() <= positive.item<double>();
      }
    }
    result.loss = result.loss + sum.log() - positive;
    result.right += right ? 1 : 0;
  }
  return result;
}

void expect_near(const at::Tensor& found, const at::Tensor& wanted) {
  ASSERT_EQ(found.sizes(), wanted.sizes());
  EXPECT_LE((found - wanted).abs().max().item<double>(), 1e-12 * wanted.abs().max().item<double>());
}

class Contrastive : public ::testing::TestWithParam<int64_t> {};
INSTANTIATE_TEST_SUITE_P(Texts, Contrastive, ::testing::Values(2, 3));

TEST_P(Contrastive, LossAndGradientsAreThoseOfTheFormula) {
  const int64_t texts = GetParam(), rows = 6 * texts;
  const EmbeddingTask task({.num_texts = texts, .temperature = kTemperature});
  const at::Tensor ours = made(rows).requires_grad_(), theirs = made(rows).requires_grad_();
  const at::Tensor loss = task.compute_loss({.embeddings = ours}, all_valid(rows));
  const Reference wanted = reference(theirs, texts);
  expect_near(loss, wanted.loss);
  loss.backward();
  wanted.loss.backward();
  expect_near(ours.grad(), theirs.grad());
  EXPECT_EQ(task.count_valid(all_valid(rows)), 6);
  const auto metrics = task.compute_metrics({.embeddings = ours}, all_valid(rows));
  EXPECT_EQ(metrics.at("accuracy").item<int64_t>(), wanted.right);
  EXPECT_GT(wanted.right, 0);
  EXPECT_LT(wanted.right, 6);
}

// All ranks' losses add up to that of one device, although each has its own anchors only.
TEST_P(Contrastive, NegativesOfOtherRanksAreThoseOfOneDevice) {
  const int64_t texts = GetParam(), ranks = 2, local = 3 * texts;
  const at::Tensor whole = made(ranks * local).requires_grad_();
  const EmbeddingTask alone({.num_texts = texts, .temperature = kTemperature});
  const at::Tensor wanted = alone.compute_loss({.embeddings = whole}, all_valid(ranks * local));
  const auto right = alone.compute_metrics({.embeddings = whole}, all_valid(ranks * local)).at("accuracy");
  wanted.backward();
  std::mutex mutex;
  std::vector<at::Tensor> losses(2), gradients(2), rights(2);
  mesh::run_ranks(
      ranks,
      [&](mesh::Transport& transport) {
        mesh::DistributedContext context({.data_parallel_replicate = 2}, transport);
        EmbeddingTask task({.num_texts = texts, .temperature = kTemperature});
        task.use_mesh(context);
        const at::Tensor mine = made(ranks * local).narrow(0, transport.rank() * local, local).clone().requires_grad_();
        const at::Tensor loss = task.compute_loss({.embeddings = mine}, all_valid(local));
        const auto metrics = task.compute_metrics({.embeddings = mine}, all_valid(local));
        loss.backward();
        const std::lock_guard lock(mutex);
        const auto rank = static_cast<size_t>(transport.rank());
        losses[rank] = loss.detach();
        gradients[rank] = mine.grad();
        rights[rank] = metrics.at("accuracy");
      },
      std::chrono::seconds(60));
  expect_near(losses[0] + losses[1], wanted.detach());
  expect_near(at::cat(gradients), whole.grad());
  EXPECT_EQ((rights[0] + rights[1]).item<int64_t>(), right.item<int64_t>());
  // Each rank alone would have fewer negatives, and so a lower loss.
  const at::Tensor first = whole.detach().narrow(0, 0, local);
  EXPECT_LT(
      alone.compute_loss({.embeddings = first}, all_valid(local)).item<double>(), losses[0].item<double>() - 1e-3);
}

// The last batch of a validation is padded.
TEST_P(Contrastive, PaddingIsNeitherAnAnchorNorANegative) {
  const int64_t texts = GetParam(), rows = 6 * texts, used = 4 * texts;
  const EmbeddingTask task({.num_texts = texts, .temperature = kTemperature});
  Batch padded = all_valid(rows);
  padded["valid"].narrow(0, used, rows - used).fill_(false);
  const at::Tensor embeddings = made(rows);
  const Reference wanted = reference(embeddings.narrow(0, 0, used), texts);
  expect_near(task.compute_loss({.embeddings = embeddings}, padded), wanted.loss);
  EXPECT_EQ(task.compute_metrics({.embeddings = embeddings}, padded).at("accuracy").item<int64_t>(), wanted.right);
  EXPECT_EQ(task.count_valid(padded), 4);
}

// Each anchor is the beginning of its positive.
std::string write_pairs(const Folder& folder, int64_t count) {
  std::string lines;
  for (int64_t i = 0; i < count; ++i) {
    const auto letter = [&](int64_t n) { return static_cast<char>('a' + (i * 7 + n * (i % 5 + 1)) % 26); };
    const std::string word{letter(1), letter(2), letter(3)};
    lines += fmt::format("{{\"anchor\": \"{}\", \"positive\": \"{} {}{}\"}}\n", word, word, letter(4), letter(0));
  }
  const auto file = folder.path() / "pairs.jsonl";
  write_file_atomically(file, lines);
  return "\"" + file.string() + "\"";
}

Overrides run_on(const std::string& pairs) {
  return {
      {"training.task", "\"embedding\""},
      {"data.datasets.0.path", pairs},
      {"data.datasets.0.kind", "\"pairs\""},
      {"data.validation_fraction", "0"},
      {"data.validation_path", pairs},
      {"training.local_batch_size", "16"},
      {"training.global_batch_size", "16"},
      {"validation.local_batch_size", "16"}};
}

// Of eight candidates, chance finds one in eight.
TEST(EmbeddingRun, LearnsToFindThePositive) {
  const Folder folder;
  auto overrides = run_on(write_pairs(folder, 50));
  overrides.emplace_back("training.steps", "60");
  overrides.emplace_back("optimizer.lr", "0.01");
  overrides.emplace_back("checkpoint.interval", "60");
  overrides.emplace_back("validation.freq", "30");
  const auto config = tiny_run(folder.path(), overrides);
  EXPECT_EQ(testing::train(config).step, 60);
  const auto out = std::filesystem::path(config.job.dump_folder) / "metrics.jsonl";
  const auto accuracy = metric::read_metric(out, "accuracy").values;
  ASSERT_EQ(accuracy.size(), 60U);
  EXPECT_LT(accuracy.front(), 0.6);
  EXPECT_GT(std::accumulate(accuracy.end() - 10, accuracy.end(), 0.0) / 10, 0.85);
  EXPECT_GT(metric::read_metric(out, "validation_accuracy").values.back(), 0.8);
  EXPECT_EQ(metric::read_metric(out, "step_labels").values.back(), 8) << "pairs";
}

TEST(EmbeddingRun, SavesABackboneAsAnOrdinaryFolder) {
  const Folder folder;
  auto overrides = run_on(write_pairs(folder, 20));
  overrides.emplace_back("training.steps", "4");
  const auto config = tiny_run(folder.path(), overrides);
  testing::train(config);
  const auto saved = pretrained::ModelFolder::open(checkpoint(config, 4), families());
  EXPECT_EQ(saved.args->head(), descriptor::Head::embedding);
  const state::WeightReader reader(checkpoint(config, 4));
  EXPECT_TRUE(reader.has("embed_tokens.weight"));
  EXPECT_TRUE(reader.has("layers.1.mlp.down_proj.weight"));
  EXPECT_FALSE(reader.has("lm_head.weight"));
  // The hidden state of one position is the embedding, as the backbone in transformers returns it.
  const auto model = saved.load(at::kCPU, at::kFloat);
  const at::Tensor ids = at::arange(12, at::kLong).view({2, 6});
  at::Tensor last = at::zeros({2, 6}, at::kBool);
  last.select(1, 5).fill_(true);
  const auto outputs = model->forward({.input_ids = ids, .pooling_mask = last});
  EXPECT_TRUE(outputs.embeddings.equal(outputs.hidden_states.select(1, 5)));
  // It is the start of another run.
  const Folder other;
  auto again = run_on(write_pairs(other, 20));
  again.emplace_back("training.steps", "1");
  again.emplace_back("optimizer.lr", "1e-30");
  again.emplace_back("lr_scheduler.warmup_steps", "0");
  again.emplace_back("checkpoint.initial_load_path", "\"" + checkpoint(config, 4).string() + "\"");
  const auto next = tiny_run(other.path(), again);
  testing::train(next);
  EXPECT_TRUE(state::WeightReader(checkpoint(next, 1))
                  .tensor("layers.1.mlp.down_proj.weight")
                  .equal(reader.tensor("layers.1.mlp.down_proj.weight")));
}

TEST(EmbeddingRun, StartsFromALanguageModelWithItsOwnHead) {
  struct Case {
    std::pair<std::string, std::string> setting;
    std::string prefix;  // of the backbone's stored tensors
  };
  const std::vector<Case> cases{
      {{"model.args.tie_word_embeddings", "false"}, "model."},
      {{"model.args.tie_word_embeddings", "true"}, "model."},
      {{"model.name", "nemotron_h"}, "backbone."}};
  for (const Case& one : cases) {
    SCOPED_TRACE(one.setting.second);
    const Folder folder, other;
    const auto language = tiny_run(folder.path(), {{"training.steps", "4"}, one.setting});
    testing::train(language);
    auto overrides = run_on(write_pairs(other, 20));
    if (one.setting.first == "model.name") {
      overrides.push_back(one.setting);
    }
    overrides.emplace_back("training.steps", "1");
    overrides.emplace_back("optimizer.lr", "1e-30");
    overrides.emplace_back("lr_scheduler.warmup_steps", "0");
    overrides.emplace_back("checkpoint.initial_load_path", "\"" + checkpoint(language, 4).string() + "\"");
    const auto config = tiny_run(other.path(), overrides);
    testing::train(config);
    const state::WeightReader theirs(checkpoint(language, 4)), ours(checkpoint(config, 1));
    for (const std::string& name : ours.names()) {
      EXPECT_TRUE(ours.tensor(name).equal(theirs.tensor(one.prefix + name))) << name;
    }
    EXPECT_EQ(ours.names().size() + 1, theirs.names().size() + (theirs.has("lm_head.weight") ? 0 : 1));
  }
}

TEST(EmbeddingRun, StartsFromAClassifierOfWordsWithoutItsHead) {
  const Folder folder, other;
  const auto words = tiny_run(
      folder.path(),
      {{"training.task", "\"token_classification\""},
       {"data.datasets.0.path", "\"recipe/data/names.jsonl\""},
       {"data.datasets.0.kind", "\"token_classification\""},
       {"data.validation_fraction", "0"},
       {"data.validation_path", "\"recipe/data/names_validation.jsonl\""},
       {"training.seq_len", "64"},
       {"training.steps", "4"}});
  testing::train(words);
  auto overrides = run_on(write_pairs(other, 20));
  overrides.emplace_back("training.steps", "1");
  overrides.emplace_back("optimizer.lr", "1e-30");
  overrides.emplace_back("lr_scheduler.warmup_steps", "0");
  overrides.emplace_back("checkpoint.initial_load_path", "\"" + checkpoint(words, 4).string() + "\"");
  const auto config = tiny_run(other.path(), overrides);
  testing::train(config);
  const state::WeightReader theirs(checkpoint(words, 4)), ours(checkpoint(config, 1));
  EXPECT_TRUE(theirs.has("score.bias"));
  EXPECT_FALSE(ours.has("score.bias"));
  EXPECT_TRUE(ours.tensor("embed_tokens.weight").equal(theirs.tensor("model.embed_tokens.weight")));
}

TEST(EmbeddingRun, ReadsItsTrainingDataOnceInWholeExamples) {
  const Folder folder;
  auto overrides = run_on(write_pairs(folder, 4));
  for (const auto& [key, value] : Overrides{
           {"data.datasets.0.negative_key", "\"positive\""},
           {"data.validation_path", "\"\""},
           {"validation.enable", "false"},
           {"data.repeat", "false"},
           {"training.local_batch_size", "3"},
           {"training.global_batch_size", "3"}}) {
    overrides.emplace_back(key, value);
  }
  const auto config = tiny_run(folder.path(), overrides);
  const RunData data = open_run_data(config, *build_tokenizer(config), {.vocab_size = 257}, [](const std::string&) {});
  int64_t examples = 0;
  const auto stream = data.train_once(RowShare::all(6), {});
  while (const auto batch = stream->next()) {
    examples += batch->at("valid").sum().item<int64_t>() / 3;
  }
  EXPECT_EQ(examples, 4);
  EXPECT_EQ(
      error_of([&] { data.train_once(RowShare::all(8), {}); }),
      "validation.local_batch_size: each example takes 3 sequences, so expected a multiple of 3, found 8");
}

TEST(EmbeddingRun, ConfigsThatCannotTrainAreRefusedByKey) {
  const Folder folder;
  const std::string pairs = write_pairs(folder, 4);
  const auto error = [&](const Overrides& more) -> std::string {
    auto overrides = run_on(pairs);
    overrides.insert(overrides.end(), more.begin(), more.end());
    try {
      tiny_run(folder.path(), overrides);
    } catch (const Error& problem) {
      EXPECT_EQ(problem.kind(), ErrorKind::usage);
      return problem.what();
    }
    return "";
  };
  EXPECT_EQ(error({}), "");
  EXPECT_THAT(
      error({{"training.task", "\"causal_lm\""}}),
      HasSubstr("data.datasets.0.kind: pairs need training.task = \"embedding\""));
  EXPECT_THAT(
      error({{"data.datasets.0.kind", "\"text\""}}),
      HasSubstr("data.datasets.0.kind: training.task = \"embedding\" needs pairs"));
  EXPECT_THAT(
      error({{"training.local_batch_size", "3"}, {"training.global_batch_size", "3"}}),
      HasSubstr(
          "training.local_batch_size: each example takes 2 sequences (anchor, positive), so expected a multiple of "
          "2, found 3"));
  EXPECT_THAT(
      error({{"data.datasets.0.negative_key", "\"negative\""}}),
      HasSubstr("validation.local_batch_size: each example takes 3 sequences (anchor, positive, negative)"));
  EXPECT_THAT(
      error({{"data.validation_fraction", "0.5"}, {"data.validation_path", "\"\""}}),
      HasSubstr("data.validation_fraction: kind = \"pairs\" requires data.validation_path"));
  EXPECT_THAT(error({{"data.datasets.0.anchor_key", "\"\""}}), HasSubstr("data.datasets.0.anchor_key: is empty"));
  EXPECT_THAT(
      error({{"sample.prompt", "\"a\""}}), HasSubstr("sample.prompt: only a causal language model can continue"));
  EXPECT_THAT(
      error({{"distillation.teacher", "\"a\""}}),
      HasSubstr("distillation.teacher: an embedding model has no token distribution"));
  EXPECT_THAT(error({{"training.contrastive_temperature", "0"}}), HasSubstr("training.contrastive_temperature"));
}

}  // namespace
}  // namespace lehr::train
