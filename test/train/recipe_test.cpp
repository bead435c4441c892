// Every recipe loads; and no recipe loads after any of its keys was corrupted, in five ways.
#include <gmock/gmock.h>

#include <algorithm>
#include <map>
#include <regex>
#include <set>
#include <utility>

#include "lehr/base/error.h"
#include "lehr/base/random.h"
#include "lehr/peft/adapter_names.h"
#include "lehr/train/build_stage.h"
#include "test/all_meshes.h"
#include "test/base/error_of.h"
#include "test/train/support.h"

namespace lehr::train {
namespace {

struct Line {
  size_t number = 0;  // from 0
  std::string table;  // "training", "data.datasets"
  std::string key;
  std::string value;
};

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines(1);
  for (const char c : text) {
    if (c == '\n') {
      lines.emplace_back();
    } else {
      lines.back() += c;
    }
  }
  return lines;
}

std::string join(const std::vector<std::string>& lines) {
  std::string text;
  for (const auto& line : lines) {
    text += line + "\n";
  }
  return text;
}

std::vector<Line> keys_of(const std::vector<std::string>& lines) {
  static const std::regex kTable(R"(^\[\[?([A-Za-z0-9_.]+)\]\]?.*)");
  static const std::regex kEntry(R"(^([a-z0-9_]+) = ("(?:[^"\\]|\\.)*"|\[[^\]]*\]|[^ #]+).*)");
  std::vector<Line> found;
  std::string table;
  std::smatch match;
  for (size_t i = 0; i < lines.size(); ++i) {
    if (std::regex_match(lines[i], match, kTable)) {
      table = match[1];
    } else if (std::regex_match(lines[i], match, kEntry)) {
      found.push_back({i, table, match[1], match[2]});
    }
  }
  return found;
}

// The rule of each field, by dotted key without list indices.
class Rules : public FieldVisitor {
 public:
  void visit(const Field& field, FieldRef value) override {
    rules[path(field.name)] = field.rule;
    texts[path(field.name)] =
        std::holds_alternative<std::string*>(value) || std::holds_alternative<std::optional<std::string>*>(value);
  }
  void begin_group(std::string_view name, std::string_view) override { path_.push_back(path(name)); }
  void end_group() override { path_.pop_back(); }
  size_t begin_list(std::string_view name, std::string_view, size_t) override {
    path_.push_back(path(name));
    return 0;
  }
  void begin_item(size_t) override {}
  void end_item() override {}
  void end_list() override { path_.pop_back(); }
  bool wants_list_prototype() const override { return true; }
  std::map<std::string, Rule> rules;
  std::map<std::string, bool> texts;

 private:
  std::string path(std::string_view name) const {
    return path_.empty() ? std::string(name) : path_.back() + "." + std::string(name);
  }
  std::vector<std::string> path_;
};

class Recipes : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    file_ = std::filesystem::path(LEHR_SOURCE_DIR) / "recipe" / GetParam();
    lines_ = lines_of(read_file(file_));
    keys_ = keys_of(lines_);
    TrainConfig config;
    config.fields(rules_);
  }

  /// The error of loading this text; nothing if it is accepted.
  std::optional<std::string> load(const std::vector<std::string>& lines) {
    const auto file = folder_.path() / "recipe.toml";
    write_file_atomically(file, join(lines));
    try {
      const ConfigSources sources{.file = file, .overrides = {}};
      config_ = load_config<TrainConfig>(sources);
      // Keys of [model.args] that are no fields are the family's, which refuses others when a run is built.
      if (config_.model.args.config_keys.size() > 0) {
        const TrainSpecs specs = testing::specs();
        const descriptor::ModelFamily& family = specs.at(config_.model).family;
        with_places(merge_sources(sources), [&] {
          family.with_config_keys(*family.from_flavor("debugmodel"), config_.model.args.config_keys, "model.args");
        });
      }
      return std::nullopt;
    } catch (const Error& error) {
      EXPECT_EQ(error.exit_code(), 2);
      return error.what();
    }
  }

  std::vector<std::string> with(const Line& line, const std::string& text) const {
    auto lines = lines_;
    lines[line.number] = text;
    return lines;
  }

  static std::string where(const Line& line) { return "recipe.toml:" + std::to_string(line.number + 1) + ":"; }
  std::string dotted(const Line& line) const { return line.table + "." + line.key; }
  /// False for a key of the family's config.json in [model.args].
  bool is_field(const Line& line) const { return rules_.rules.count(dotted(line)) != 0; }

  std::filesystem::path file_;
  std::vector<std::string> lines_;
  std::vector<Line> keys_;
  Rules rules_;
  testing::Folder folder_;
  TrainConfig config_;
};

TEST_P(Recipes, Loads) {
  EXPECT_EQ(load(lines_), std::nullopt);
  EXPECT_GT(keys_.size(), 10U);
}

// Their patterns select modules of the family whose adapters a folder can hold. The family's smallest flavor has the
// same modules.
TEST_P(Recipes, BuildTheirAdapters) {
  ASSERT_EQ(load(lines_), std::nullopt);
  if (!config_.peft.has_adapters()) {
    return;
  }
  const std::map<std::string, std::string> family_of{
      {"models/gpt-oss-20b", "gpt_oss"}, {"outputs/quickstart/checkpoints/step-1400", "qwen3"}};
  config_.model.name = family_of.at(std::exchange(config_.model.hf_assets_path, ""));
  const TrainSpecs specs = testing::specs();
  const TrainSpec& spec = specs.at(config_.model);
  const auto args = spec.family.from_flavor("debugmodel");
  const auto model = build_with_adapters(config_, *args, spec.build);
  const auto names = peft::stored_names(*args);
  EXPECT_FALSE(peft::adapter_stored_names(*model, names, peft::tuned_tensors(*model, names)).empty());
}

std::string with_typo(const std::string& word, uint64_t bits) {
  std::string typo = word;
  const size_t at = bits / 4 % word.size();
  switch (bits % 4) {
    case 0:
      typo.erase(at, 1);
      break;
    case 1:
      typo.insert(at, 1, typo[at]);
      break;
    case 2:
      typo[at] = typo[at] == 'q' ? 'x' : 'q';
      break;
    default:
      if (at + 1 < typo.size() && typo[at] != typo[at + 1]) {
        std::swap(typo[at], typo[at + 1]);
      } else {
        typo += 'q';
      }
  }
  return typo;
}

// Two typos of each key, or four with LEHR_ALL_MESHES=1.
TEST_P(Recipes, SuggestTheKeyForATypo) {
  const int typos = test::all_meshes() ? 4 : 2;
  const RandomStream random(1, GetParam());
  uint64_t draw = 0;
  int right = 0;
  int all = 0;
  for (const auto& line : keys_) {
    for (int again = 0; again < typos; ++again) {
      std::string typo = with_typo(line.key, random.bits(draw++));
      if (typo.empty() || rules_.rules.count(line.table + "." + typo) != 0) {
        continue;  // the typo is another valid key
      }
      const auto message = load(with(line, typo + " = " + line.value));
      ASSERT_TRUE(message) << typo << " in [" << line.table << "] was accepted";
      EXPECT_THAT(*message, ::testing::HasSubstr(where(line)));
      ++all;
      const bool named = message->find("'" + line.key + "'") != std::string::npos ||
                         message->find("." + line.key + "'") != std::string::npos;
      right += named ? 1 : 0;
      if (!named) {
        std::printf("no suggestion for %s: %s\n", typo.c_str(), message->c_str());
      }
    }
  }
  EXPECT_GE(right, 0.95 * all) << right << " of " << all;
}

TEST_P(Recipes, ReportAKeyInTheWrongTable) {
  for (const auto& line : keys_) {
    auto lines = lines_;
    lines[line.number] = "";
    lines.push_back("[comm]");
    lines.push_back(line.key + " = " + line.value);
    const auto message = load(lines);
    ASSERT_TRUE(message) << dotted(line);
    EXPECT_THAT(*message, ::testing::HasSubstr("recipe.toml:" + std::to_string(lines.size()) + ":1: comm." + line.key));
  }
}

// Unless LEHR_ALL_MESHES=1, a key has one or two of the five types, and the next key others.
TEST_P(Recipes, RefuseAnotherType) {
  const std::vector<std::string> types{"\"a word\"", "[[1]]", "1979-05-27", "3.25", "{a = {b = 1}}"};
  for (const auto& line : keys_) {
    for (const std::string& wrong : test::every_nth(3, types, line.number % 3)) {
      const bool text = rules_.texts[dotted(line)];
      const bool number = line.value.find_first_not_of("0123456789.eE+-_") == std::string::npos;
      const bool real = number && line.value.find_first_of(".eE") != std::string::npos;
      if ((wrong.front() == '"' && (text || line.value.front() == '"')) || (wrong == "3.25" && real)) {
        continue;  // the same type after all
      }
      const auto message = load(with(line, line.key + " = " + wrong));
      ASSERT_TRUE(message) << dotted(line) << " = " << wrong;
      EXPECT_THAT(*message, ::testing::HasSubstr(where(line)));
    }
  }
}

TEST_P(Recipes, RefuseValuesOutOfRange) {
  std::vector<std::string> any_text;
  for (const auto& line : keys_) {
    if (!is_field(line)) {
      continue;
    }
    const Rule& rule = rules_.rules[dotted(line)];
    std::vector<std::string> wrong;
    if (!rule.one_of.empty()) {
      wrong.push_back("\"nonsense\"");
    }
    if (std::isfinite(rule.min)) {
      wrong.push_back(std::to_string(static_cast<int64_t>(rule.min) - 1));
    }
    if (std::isfinite(rule.max)) {
      wrong.push_back(std::to_string(static_cast<int64_t>(rule.max) + 1));
    }
    if (wrong.empty() && line.value != "true" && line.value != "false") {
      any_text.push_back(line.key);
    }
    for (const auto& value : wrong) {
      const auto message = load(with(line, line.key + " = " + value));
      ASSERT_TRUE(message) << dotted(line) << " = " << value;
      EXPECT_THAT(*message, ::testing::HasSubstr(where(line)));
    }
  }
  // Text whose values only the model list, the file system or a person can judge.
  const std::set<std::string> free_text{
      "description",
      "dump_folder",
      "name",
      "flavor",
      "hf_assets_path",
      "teacher",
      "path",
      "prompt",
      "pattern",
      "text_key",
      "label_key",
      "messages_key",
      "prompt_key",
      "input_key",
      "answer_key",
      "chat_template",
      "pipeline_parallel_schedule",
      "split_documents",
      "validation_path",
      "initial_load_path",
      "target_pattern",
      "full_tune_pattern",
      "init_from",
      "selective_ac_option",
      "folder",
      "save_tb_folder",
      "cache_folder"};
  for (const auto& key : any_text) {
    EXPECT_TRUE(free_text.count(key) != 0) << key << " has no rule";
  }
}

TEST_P(Recipes, RefuseADuplicateKey) {
  for (const auto& line : keys_) {
    auto lines = lines_;
    lines.insert(lines.begin() + static_cast<long>(line.number) + 1, line.key + " = " + line.value);
    const auto message = load(lines);
    ASSERT_TRUE(message) << dotted(line);
    EXPECT_THAT(*message, ::testing::HasSubstr("recipe.toml:" + std::to_string(line.number + 2) + ":"));
  }
}

TEST_P(Recipes, RefuseConflictsBetweenKeys) {
  const std::vector<std::pair<std::string, std::string>> conflicts{
      {"training.global_batch_size", "1000003"},
      {"lr_scheduler.warmup_steps", "100000000"},
      {"profiling.profile_freq", "1"},
      {"parallelism.pipeline_parallel_schedule", "1F1C"},
      {"parallelism.pipeline_parallel_schedule", "Inference"},
      {"parallelism.pipeline_parallel_microbatch_size", "0"},
  };
  for (const auto& [key, value] : conflicts) {
    // Every number of sequences is a multiple of one.
    const Overrides overrides{{"training.local_batch_size", "4"}, {key, value}};
    EXPECT_THAT(
        any_error::error_of([&] { load_config<TrainConfig>({.file = file_, .overrides = overrides}); }),
        ::testing::HasSubstr(key));
  }
}

TEST_P(Recipes, ReportAllProblemsTogether) {
  auto lines = lines_;
  std::vector<Line> spoilt;
  for (size_t i = 0; i < keys_.size(); i += 3) {
    if (!is_field(keys_[i])) {
      continue;
    }
    lines[keys_[i].number] = keys_[i].key + " = [[true]]";
    spoilt.push_back(keys_[i]);
  }
  const auto message = load(lines);
  ASSERT_TRUE(message);
  for (const auto& line : spoilt) {
    EXPECT_THAT(*message, ::testing::HasSubstr(where(line) + "1: "));
  }
}

std::vector<std::string> recipes() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(std::filesystem::path(LEHR_SOURCE_DIR) / "recipe")) {
    // The configs of searches are another struct; test/program/search.py runs one.
    if (entry.path().extension() == ".toml" && !entry.path().filename().string().starts_with("search_")) {
      names.push_back(entry.path().filename().string());
    }
  }
  std::sort(names.begin(), names.end());
  return names;
}

INSTANTIATE_TEST_SUITE_P(All, Recipes, ::testing::ValuesIn(recipes()), [](const auto& recipe) {
  std::string name = recipe.param;
  std::replace_if(
      name.begin(), name.end(), [](char c) { return !std::isalnum(static_cast<unsigned char>(c)); }, '_');
  return name;
});

}  // namespace
}  // namespace lehr::train
