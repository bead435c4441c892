// From the config to sequences: kinds, cache, validation, and mistakes of users.
#include "lehr/data/open_data.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <set>
#include <thread>

#include "lehr/data/loader.h"
#include "lehr/data/token_file.h"
#include "lehr/data/tokenize_corpus.h"
#include "test/data/support.h"

namespace lehr::data {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr const char* kShakespeare = "recipe/data/tinyshakespeare.txt";

DataConfig config_of(const std::string& path) {
  DataConfig config;
  config.datasets.push_back({.path = path});
  return config;
}

std::vector<int64_t> all_tokens(const TokenStream& stream) {
  return stream.ids({0, stream.num_tokens()});
}

TEST(OpenData, TheQuickstartTextIsOneDocumentThatIsCutIntoSequences) {
  DataConfig config = config_of(repository(kShakespeare).string());
  config.validation_fraction = 0.1;
  const LanguageData data = open_data(config, BytesForTests(), {.seq_len = 64, .vocab_size = 257, .seed = 1});
  const PackedRows& rows = data.train->parts().front().rows;
  EXPECT_EQ(rows.stream().num_documents(), 1);
  const Batch batch = *BatchLoader(data.train, batch_plan_of_rank(8, 0, 1)).next();
  EXPECT_FALSE(batch.has_packing);
  EXPECT_EQ(batch.num_valid_tokens, 8 * 64);
  EXPECT_TRUE(batch.labels.slice(1, 0, 63).equal(batch.input_ids.slice(1, 1, 64)));
  EXPECT_EQ(data.train->size(), std::nullopt);
  ASSERT_TRUE(data.validation->size());
}

TEST(OpenData, ValidationAndTrainingAreDisjointAndComplete) {
  const TemporaryFolder folder;
  const auto path = write_file(folder / "a.tokens", "");
  TokenFileWriter writer(path, 5000);
  int32_t id = 0;
  for (int document = 0; document < 50; ++document) {
    std::vector<int32_t> ids(static_cast<size_t>(1 + document * 7 % 60));
    std::generate(ids.begin(), ids.end(), [&] { return id++; });
    writer.append(ids);
  }
  writer.finish();
  for (const double fraction : {0.03, 0.25, 0.6}) {
    DataConfig config = config_of(path.string());
    config.validation_fraction = fraction;
    const LanguageData data = open_data(config, BytesForTests(), {.seq_len = 8, .vocab_size = 5000});
    auto train = all_tokens(data.train->parts().front().rows.stream());
    const auto validation = all_tokens(data.validation->parts().front().rows.stream());
    EXPECT_NEAR(static_cast<double>(validation.size()) / id, fraction, 0.5 * fraction);
    train.insert(train.end(), validation.begin(), validation.end());
    EXPECT_EQ(static_cast<int32_t>(train.size()), id);
    EXPECT_EQ(static_cast<int32_t>(std::set<int64_t>(train.begin(), train.end()).size()), id);
  }
}

TEST(OpenData, AShareOfOneTokenIsTooFewToHoldOut) {
  const TemporaryFolder folder;
  DataConfig config = config_of(write_file(folder / "a.txt", std::string(99, 'a')).string());
  for (const double fraction : {0.01, 0.99}) {
    config.validation_fraction = fraction;
    EXPECT_THAT(
        usage_error_of([&] { open_data(config, BytesForTests(), {.seq_len = 8, .vocab_size = 257}); }),
        HasSubstr(
            "data.validation_fraction: " + (folder / "a.txt").string() + " holds 100 tokens in 1 documents, too few"));
  }
  config.validation_fraction = 0.02;
  const LanguageData data = open_data(config, BytesForTests(), {.seq_len = 8, .vocab_size = 257});
  EXPECT_EQ(data.validation->parts().front().rows.stream().num_tokens(), 2);
}

TEST(OpenData, ValidationMayComeFromAnotherFile) {
  const TemporaryFolder folder;
  DataConfig config = config_of(repository(kShakespeare).string());
  config.validation_path = repository("recipe/data/c4_sample.jsonl").string();
  const LanguageData data = open_data(config, BytesForTests(), {.seq_len = 128, .vocab_size = 257});
  EXPECT_EQ(data.validation->parts().front().rows.stream().num_documents(), 40);
  EXPECT_EQ(data.train->parts().front().rows.stream().num_documents(), 1);
}

TEST(OpenData, LargeTextIsTokenizedOnceAndAgainWhenItChanges) {
  const TemporaryFolder folder;
  std::string text;
  while (text.size() < (size_t{5} << 20)) {
    text += "All the world's a stage, and all the men and women merely players.\n";
  }
  const auto path = write_file(folder / "play.txt", text);
  std::vector<std::string> told;
  const OpenDataOptions options{
      .seq_len = 64, .vocab_size = 257, .cache_folder = folder / "cache", .inform = [&](const std::string& line) {
        told.push_back(line);
      }};
  const DatasetConfig dataset{.path = path.string()};
  const auto open = [&](const Tokenizer& tokenizer = BytesForTests()) {
    told.clear();
    return open_tokens(dataset, tokenizer, options);
  };
  const auto cached = [&] {
    std::set<std::filesystem::path> files;
    for (const auto& entry : std::filesystem::directory_iterator(folder / "cache")) {
      if (entry.path().extension() == ".tokens") {
        files.insert(entry.path());
      }
    }
    return files;
  };
  const auto first = all_tokens(open());
  EXPECT_THAT(told, ElementsAre(HasSubstr("tokenizing into")));
  EXPECT_EQ(first.size(), text.size() + 1);
  EXPECT_EQ(all_tokens(open()), first);
  EXPECT_THAT(told, ElementsAre(HasSubstr("tokens are cached in")));
  ASSERT_EQ(cached().size(), 1U);

  // a damaged cache is rebuilt
  const auto file = *cached().begin();
  std::string damaged = read_file(file);
  damaged[1000] ^= 1;
  write_file(file, damaged);
  EXPECT_EQ(all_tokens(open()), first);
  EXPECT_THAT(told, ElementsAre(HasSubstr("damaged"), HasSubstr("tokenizing into")));

  open(BytesForTests(1));  // another tokenizer
  EXPECT_EQ(cached().size(), 2U);
  write_file(path, text + "x");  // another text
  EXPECT_EQ(open().num_tokens(), static_cast<int64_t>(text.size()) + 2);
  EXPECT_EQ(cached().size(), 3U);
}

TEST(OpenData, WhatAKilledProcessLeftOfACacheFileIsRemoved) {
  const TemporaryFolder folder;
  const auto path = write_file(folder / "play.txt", std::string(size_t{5} << 20, 'a'));
  const OpenDataOptions options{.seq_len = 64, .vocab_size = 257, .cache_folder = folder / "cache"};
  const auto files = [&] {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(folder / "cache")) {
      names.push_back(entry.path().filename().string());
    }
    std::sort(names.begin(), names.end());
    return names;
  };
  open_tokens({.path = path.string()}, BytesForTests(), options);
  const auto whole = files();
  ASSERT_EQ(whole.size(), 2U) << "the lock, and the tokens";
  const std::string& tokens = whole.back();
  std::filesystem::remove(folder / ("cache/" + tokens));
  const auto old = [&](const std::string& name) {
    const auto file = write_file(folder / ("cache/" + name), "half");
    std::filesystem::last_write_time(file, std::filesystem::file_time_type::clock::now() - std::chrono::hours(2));
  };
  old(tokens + ".partial-abcdef");
  old(tokens + ".boundaries.partial-ghijkl");
  old("other.tokens.partial-abcdef");
  write_file(folder / ("cache/" + tokens + ".partial-mnopqr"), "what another machine writes now");
  open_tokens({.path = path.string()}, BytesForTests(), options);
  EXPECT_THAT(
      files(),
      testing::UnorderedElementsAre(".lock", "other.tokens.partial-abcdef", tokens, tokens + ".partial-mnopqr"));
}

TEST(OpenData, ACompleteCacheFileIsReadWhileAnotherProcessTokenizes) {
  const TemporaryFolder folder;
  const auto path = write_file(folder / "play.txt", std::string(size_t{5} << 20, 'a'));
  const OpenDataOptions options{.seq_len = 64, .vocab_size = 257, .cache_folder = folder / "cache"};
  open_tokens({.path = path.string()}, BytesForTests(), options);
  const int lock = ::open((folder / "cache/.lock").c_str(), O_RDWR);
  ASSERT_EQ(::flock(lock, LOCK_EX), 0);
  EXPECT_EQ(open_tokens({.path = path.string()}, BytesForTests(), options).num_tokens(), (5 << 20) + 1);
  ::close(lock);
}

TEST(OpenData, RanksThatStartTogetherTokenizeOnce) {
  const TemporaryFolder folder;
  const auto path = write_file(folder / "play.txt", std::string(size_t{5} << 20, 'a'));
  std::atomic<int> tokenized = 0;
  const OpenDataOptions options{
      .seq_len = 64, .cache_folder = folder / "cache", .inform = [&](const std::string& line) {
        tokenized += line.find("tokenizing into") != std::string::npos;
      }};
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 4; ++rank) {
    ranks.emplace_back(
        [&] { EXPECT_EQ(open_tokens({.path = path.string()}, BytesForTests(), options).num_tokens(), (5 << 20) + 1); });
  }
  for (auto& rank : ranks) {
    rank.join();
  }
  EXPECT_EQ(tokenized, 1);
}

TEST(OpenData, IdsOutsideTheModelsVocabularyAreAnErrorAtTheStart) {
  EXPECT_THAT(
      usage_error_of([] {
        open_data(config_of(repository(kShakespeare).string()), BytesForTests(), {.seq_len = 8, .vocab_size = 256});
      }),
      HasSubstr("tinyshakespeare.txt: its largest token id is 256, but the vocabulary of the model has only 256"));
}

TEST(OpenData, ATokenFileOfAnotherTokenizerIsAnError) {
  const TemporaryFolder folder;
  const auto text = write_file(folder / "a.txt", "some text");
  tokenize_corpus({{.path = text}}, BytesForTests(3), folder / "a.tokens");
  EXPECT_THAT(
      usage_error_of([&] { open_data(config_of((folder / "a.tokens").string()), BytesForTests(), {.seq_len = 8}); }),
      HasSubstr("a.tokens: was created with another tokenizer"));
}

TEST(OpenData, APatternOfTokenFilesIsRefused) {
  const TemporaryFolder folder;
  for (const char* name : {"a.tokens", "b.tokens"}) {
    TokenFileWriter writer(folder / name, 257);
    writer.append(std::vector<int32_t>(100, 7));
    writer.finish();
  }
  const auto error_for = [&](const DataConfig& config) {
    return usage_error_of([&] { open_data(config, BytesForTests(), {.seq_len = 8, .vocab_size = 257}); });
  };
  DataConfig config = config_of((folder / "*.tokens").string());
  EXPECT_THAT(
      error_for(config),
      testing::AllOf(
          HasSubstr("data.datasets.0.path: "), HasSubstr("*.tokens: is a pattern, but token files are named")));
  config.datasets[0] = {.path = (folder / "[ab]*").string(), .kind = DatasetKind::tokens};
  EXPECT_THAT(error_for(config), HasSubstr("is a pattern"));
  config = config_of((folder / "a.tokens").string());
  EXPECT_EQ(error_for(config), "");
  config.validation_path = (folder / "b*.tokens").string();
  EXPECT_THAT(error_for(config), HasSubstr("data.validation_path: "));
}

TEST(OpenData, ClassificationOpensItsTwoFiles) {
  DataConfig config = config_of(repository("test/data/data/sst2_sample.txt").string());
  config.datasets.front().kind = DatasetKind::classification;
  config.validation_path = config.datasets.front().path;
  const auto data = open_classification(config, BytesForTests(), {.seq_len = 32});
  EXPECT_EQ(data.train->size(), 60);
  EXPECT_EQ(data.validation->num_labels(), 2);
}

TEST(OpenData, TokenClassificationOpensItsTwoFilesWithTheirKeys) {
  const TemporaryFolder folder;
  DataConfig config = config_of(write_file(folder / "a.jsonl", "{\"w\": [\"a\", \"b\"], \"t\": [0, 4]}\n").string());
  config.datasets.front().kind = DatasetKind::token_classification;
  config.datasets.front().tokens_key = "w";
  config.datasets.front().tags_key = "t";
  config.datasets.front().pad_to_multiple_of = 3;
  config.validation_path = config.datasets.front().path;
  const auto data = open_token_classification(config, BytesForTests(), {.seq_len = 32});
  EXPECT_EQ(data.train->options().pad_to_multiple_of, 3);
  EXPECT_EQ(data.train->options().max_length, 32);
  EXPECT_EQ(data.validation->num_labels(), 5);
  EXPECT_THAT(
      usage_error_of([&] { open_data(config, BytesForTests(), {.seq_len = 32}); }),
      HasSubstr("labelled texts cannot train a language model"));
}

TEST(OpenData, TheFingerprintChangesWithEverySettingThatChangesTheOrder) {
  const auto fingerprint = [](const DataConfig& config, uint64_t seed, int64_t seq_len) {
    return open_data(config, BytesForTests(), {.seq_len = seq_len, .seed = seed}).train->fingerprint();
  };
  const DataConfig c4 = config_of(repository("recipe/data/c4_sample.jsonl").string());
  DataConfig whole = c4, two = c4, part = c4;
  whole.packing = Packing::whole;
  two.datasets.push_back(c4.datasets.front());
  part.validation_fraction = 0.2;
  const uint64_t base = fingerprint(c4, 1, 64);
  EXPECT_EQ(base, fingerprint(c4, 1, 64));
  for (const uint64_t other :
       {fingerprint(c4, 2, 64),
        fingerprint(c4, 1, 65),
        fingerprint(whole, 1, 64),
        fingerprint(two, 1, 64),
        fingerprint(part, 1, 64)}) {
    EXPECT_NE(base, other);
  }
}

/// Sets one string field and counts the fields.
class SetOne : public FieldVisitor {
 public:
  SetOne(std::string name, std::string value) : name_(std::move(name)), value_(std::move(value)) {}
  int fields = 0;

 protected:
  void visit(const Field& field, FieldRef value) override {
    ++fields;
    EXPECT_FALSE(field.help.empty()) << field.name;
    if (field.name == name_) {
      *std::get<std::string*>(value) = value_;
    }
  }
  void begin_group(std::string_view, std::string_view) override {}
  void end_group() override {}
  size_t begin_list(std::string_view, std::string_view, size_t size) override { return size; }
  void begin_item(size_t) override {}
  void end_item() override {}
  void end_list() override {}

 private:
  std::string name_, value_;
};

TEST(DataConfig, ItsFieldsReachItsMembers) {
  DataConfig config = config_of("a");
  SetOne kind("kind", "jsonl"), packing("packing", "whole");
  config.fields(kind);
  config.fields(packing);
  EXPECT_EQ(config.datasets.front().kind, DatasetKind::jsonl);
  EXPECT_EQ(config.packing, Packing::whole);
  EXPECT_EQ(kind.fields, 26);  // seventeen of the dataset and nine of the section
}

std::vector<std::string> problem_keys(const DataConfig& config) {
  Problems problems;
  config.check(problems);
  std::vector<std::string> keys;
  for (const auto& item : problems.items()) {
    keys.push_back(item.key);
  }
  return keys;
}

TEST(DataConfig, ChecksRulesAcrossFields) {
  DataConfig config;
  EXPECT_THAT(problem_keys(config), ElementsAre("data.datasets"));
  config = config_of("a.txt");
  EXPECT_THAT(problem_keys(config), IsEmpty());
  config.validation_fraction = 0.1;
  config.validation_path = "b.txt";
  EXPECT_THAT(problem_keys(config), ElementsAre("data.validation_fraction"));
  config = config_of("a.txt");
  config.repeat = false;
  config.datasets.push_back({.path = "", .weight = 2});
  EXPECT_THAT(problem_keys(config), ElementsAre("data.datasets.1.path", "data.datasets.1.weight"));
  config = config_of("a.txt");
  config.datasets.push_back({.path = "b.txt", .kind = DatasetKind::classification});
  EXPECT_THAT(problem_keys(config), ElementsAre("data.datasets.0.kind", "data.datasets"));
  config = config_of("a.jsonl");
  config.datasets.front().kind = DatasetKind::token_classification;
  EXPECT_THAT(problem_keys(config), IsEmpty());
  config.validation_fraction = 0.1;
  config.datasets.push_back({.path = "b.txt", .kind = DatasetKind::classification});
  EXPECT_THAT(problem_keys(config), ElementsAre("data.datasets.0.kind", "data.datasets", "data.validation_fraction"));
}

}  // namespace
}  // namespace lehr::data
