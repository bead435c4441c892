// Random runs on random meshes equal one device, or are refused for one of the reasons in test/train/draw.cpp.
//
// LEHR_DRAWS=300 LEHR_TEST_SEED=7 draws 300 others; --gtest_filter='*EqualsOneDevice/17' repeats number 17 of them.
#include <gmock/gmock.h>

#include <iostream>

#include "lehr/base/error.h"
#include "lehr/base/file.h"
#include "test/train/draw.h"

namespace lehr::train {
namespace {

using testing::Draw;
using testing::Folder;
using testing::Outcome;
using testing::Overrides;

int64_t number_in(const char* variable, int64_t otherwise) {
  const char* const text = std::getenv(variable);
  return text == nullptr ? otherwise : std::stoll(text);
}

// Every family of the list that the tests train.
const std::vector<std::string> kFamilies{
    "qwen3",
    "qwen3_moe",
    "llama3",
    "olmo2",
    "qwen2",
    "mistral",
    "smollm3",
    "olmo3",
    "gemma3",
    "mixtral",
    "deepseek_v3",
    "glm4_moe",
    "qwen3_next",
    "gpt_oss"};

// A file of labelled texts of different lengths.
std::filesystem::path labelled_rows() {
  static const Folder folder;
  const auto file = folder.path() / "rows.jsonl";
  if (!std::filesystem::exists(file)) {
    std::string rows;
    for (size_t i = 0; i < 64; ++i) {
      const std::string text = std::string("the quick brown fox jumps over the dog").substr(i % 17, 4 + i % 9);
      rows += fmt::format("{{\"text\": \"{}\", \"label\": {}}}\n", text, i % 2);
    }
    write_file_atomically(file, rows);
  }
  return file;
}

Overrides joined(const std::vector<Overrides>& parts) {
  Overrides all;
  for (const Overrides& part : parts) {
    all.insert(all.end(), part.begin(), part.end());
  }
  return all;
}

class RandomDraws : public ::testing::TestWithParam<int64_t> {
 protected:
  static void TearDownTestSuite() {
    std::cout << equal << " draws equal one device, " << refused << " were refused for a reason of the list\n";
    EXPECT_LE(refused, (equal + refused) / 3) << "draws: too few of them are runs";
  }
  static int64_t equal, refused;  // draws so far
};
int64_t RandomDraws::equal = 0;
int64_t RandomDraws::refused = 0;

INSTANTIATE_TEST_SUITE_P(Runs, RandomDraws, ::testing::Range<int64_t>(0, number_in("LEHR_DRAWS", 24)));

// A model of that shape which one step has trained, as a base of adapters and as a teacher: its folder.
std::string trained_model(const Overrides& shape, const Folder& folder) {
  const auto config = testing::tiny_run(
      folder.path(),
      joined({shape, {{"training.steps", "1"}, {"checkpoint.interval", "1"}, {"lr_scheduler.warmup_steps", "0"}}}));
  testing::train(config);
  return '"' + testing::checkpoint(config, 1).string() + '"';
}

// What differs by more than 1e-9 of its value on one device (of its largest element, for a tensor), curves first.
std::vector<std::string> differences(const Outcome& wanted, const Outcome& found) {
  std::vector<std::string> lines;
  const auto compare = [&](const std::string& name, const at::Tensor& a, const at::Tensor& b) {
    if (a.sizes() != b.sizes()) {
      lines.push_back(fmt::format("{}: {} elements instead of {}", name, b.numel(), a.numel()));
    } else if (a.numel() > 0) {
      const double error = (a - b).abs().max().item<double>(), scale = a.abs().max().item<double>();
      if (!(error <= 1e-9 * scale)) {  // also if it is no number
        lines.push_back(fmt::format("{}: off by {:.1e} of {:.3g}", name, error, scale));
      }
    }
  };
  const auto number = [](double value) { return at::full({1}, value, at::kDouble); };
  for (const auto& [key, values] : wanted.curves) {
    const auto& others = found.curves.at(key);
    for (size_t i = 0; i < std::max(values.size(), others.size()); ++i) {
      const auto value_at = [&](const std::vector<double>& curve) {
        return i < curve.size() ? number(curve[i]) : at::Tensor(at::empty({0}, at::kDouble));
      };
      compare(fmt::format("{} {}", key, i + 1), value_at(values), value_at(others));
    }
  }
  for (const auto& [name, value] : wanted.tensors) {
    const auto other = found.tensors.find(name);
    const at::Tensor none = at::empty({0}, at::kDouble);
    compare(name, value.to(at::kDouble), other == found.tensors.end() ? none : other->second.to(at::kDouble));
  }
  EXPECT_EQ(found.tensors.size(), wanted.tensors.size());
  lines.resize(std::min<size_t>(lines.size(), 20));
  return lines;
}

void expect_listed(const Error& error) {
  EXPECT_EQ(error.kind(), ErrorKind::usage) << error.what();
  const auto& reasons = testing::reasons_to_refuse();
  EXPECT_TRUE(std::any_of(
      reasons.begin(),
      reasons.end(),
      [&](const std::string& reason) { return std::string_view(error.what()).find(reason) != std::string_view::npos; }))
      << "refused for a reason that is not on the list: " << error.what();
}

TEST_P(RandomDraws, EqualsOneDevice) {
  const Draw draw =
      testing::draw_run(static_cast<uint64_t>(number_in("LEHR_TEST_SEED", 0)), GetParam(), kFamilies, labelled_rows());
  SCOPED_TRACE(draw.text());
  const Folder of_base, of_teacher, of_one, folder;
  Overrides start;
  if (draw.adapters) {
    start.emplace_back("checkpoint.initial_load_path", trained_model(draw.shape, of_base));
  }
  if (draw.teacher) {
    start.emplace_back("distillation.teacher", trained_model(*draw.teacher, of_teacher));
  }
  TrainConfig config;
  bool began = false;
  try {
    config = testing::tiny_run(folder.path(), joined({draw.shape, draw.run, start, draw.on_mesh}));
    testing::train_on(draw.mesh, config, draw.then ? testing::kSteps / 2 : 0);
    began = true;
    if (draw.then) {
      config = testing::tiny_run(folder.path(), joined({draw.shape, draw.run, start, draw.on_mesh, draw.changed}));
      testing::train_on(*draw.then, config);
    }
  } catch (const Error& error) {
    expect_listed(error);
    EXPECT_TRUE(began || !std::filesystem::exists(config.job.dump_folder)) << "refused after memory was allocated";
    ++refused;
    return;
  }
  const Overrides alone = joined({draw.shape, draw.run, start, draw.alone});
  const auto one_device = testing::tiny_run(of_one.path(), joined({alone, draw.changed}));
  if (!draw.changed.empty()) {
    testing::train(testing::tiny_run(of_one.path(), alone), testing::kSteps / 2);
  }
  testing::train(one_device);
  const std::string weights = draw.adapters ? "adapter_model" : "model";
  const Outcome wanted = testing::outcome_of(one_device, weights);
  ASSERT_EQ(wanted.curves.at("loss").size(), testing::kSteps);
  EXPECT_THAT(differences(wanted, testing::outcome_of(config, weights)), ::testing::IsEmpty());
  ++equal;
}

}  // namespace
}  // namespace lehr::train
