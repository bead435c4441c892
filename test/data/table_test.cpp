// Parquet and Arrow files: read as the JSON lines of the same data (test/data/table, script/make_table_fixtures.py).
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "lehr/data/chat_rows.h"
#include "lehr/data/classification.h"
#include "lehr/data/corpus.h"
#include "lehr/data/open_data.h"
#include "lehr/data/rows.h"
#include "lehr/data/tokenize_corpus.h"
#include "test/data/support.h"

namespace lehr::data {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class Table : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string problem = open_arrow(); !problem.empty()) {
      GTEST_SKIP() << "there is no Apache Arrow: " << problem;
    }
  }
};
class HostileTable : public Table {};

std::filesystem::path table_fixture(const std::string& name) {
  return repository("test/data/table") / name;
}

std::vector<std::string> lines_of(const std::filesystem::path& path, const RowKeys& keys) {
  LineReader reader(open_rows(path, keys));
  std::vector<std::string> lines;
  for (std::string_view line; reader.next(line);) {
    lines.emplace_back(line);
  }
  return lines;
}

std::vector<std::string> texts_of(const TextSource& source) {
  CorpusReader reader({source});
  std::vector<std::string> texts;
  while (const auto document = reader.next()) {
    texts.push_back(document->text);
  }
  return texts;
}

// As a list of token files would be compared: bytes, with the tokenizer's fingerprint and all boundaries.
std::string token_file_of(const TextSource& source) {
  const TemporaryFolder folder;
  tokenize_corpus({source}, BytesForTests(), folder / "a.tokens");
  return read_file(folder / "a.tokens");
}

TEST_F(Table, AFolderOfTheHubGivesTheTokensOfItsJsonLines) {
  const std::string expected = token_file_of({.path = table_fixture("hub.jsonl")});
  EXPECT_GT(expected.size(), 20'000u);
  EXPECT_EQ(token_file_of({.path = table_fixture("hub/data/train-*.parquet")}), expected);
  EXPECT_EQ(token_file_of({.path = table_fixture("hub/data/train-*.parquet"), .kind = TextKind::rows}), expected);
}

TEST_F(Table, WhatSaveToDiskWroteGivesTheSameTokens) {
  EXPECT_EQ(token_file_of({.path = table_fixture("saved/train")}), token_file_of({.path = table_fixture("hub.jsonl")}))
      << "the cache beside the tables is not of the data set";
  EXPECT_THAT(texts_of({.path = table_fixture("saved/test")}), ElementsAre("held out"));
}

TEST_F(Table, ReadsOfAnySizeGiveTheSameBytes) {
  const auto bytes_by = [](int64_t capacity) {
    const auto source = open_rows(table_fixture("hub/data/train-00000-of-00002.parquet"), {.required = {"text"}});
    std::string bytes, block(static_cast<size_t>(capacity), ' ');
    for (int64_t got = 1; got > 0;) {
      got = source->read(block.data(), capacity);
      bytes.append(block, 0, static_cast<size_t>(got));
    }
    return bytes;
  };
  const std::string expected = bytes_by(1 << 20);
  EXPECT_GT(expected.size(), 5000u);
  EXPECT_EQ(bytes_by(7), expected);
}

TEST_F(Table, DocumentsAreNamedByTheirRow) {
  CorpusReader reader({{.path = table_fixture("hub/data/train-00001-of-00002.parquet")}});
  std::vector<int64_t> rows;
  while (const auto document = reader.next()) {
    rows.push_back(document->line);
  }
  ASSERT_EQ(rows.size(), 45u) << "46 rows, one of which is empty";
  EXPECT_EQ(rows[39], 40);
  EXPECT_EQ(rows[40], 42) << "row 41 is the empty one";
}

TEST_F(Table, EveryTypeOfTextIsText) {
  for (const char* name : {"types.arrow", "types_file.arrow", "types.parquet"}) {
    for (const std::string column : {"string", "large", "view", "binary", "binary_view", "large_binary", "coded"}) {
      if (column != "binary_view" || table_fixture(name).extension() == ".arrow") {
        EXPECT_THAT(texts_of({.path = table_fixture(name), .text_key = column}), ElementsAre("a", "\u00e4 b", "a"))
            << name << " " << column;
      }
    }
  }
}

TEST_F(Table, ValuesAreThoseOfJson) {
  for (const char* name : {"types.arrow", "types_file.arrow", "types.parquet"}) {
    const auto values = [&](const std::string& column) {
      std::vector<std::string> found;
      for (const std::string& line : lines_of(table_fixture(name), {.required = {column}})) {
        const std::string key = "{\"" + column + "\":";
        EXPECT_TRUE(line.starts_with(key)) << line;
        found.push_back(line.substr(key.size(), line.size() - key.size() - 1));
      }
      return found;
    };
    EXPECT_THAT(values("nulls"), ElementsAre("\"a\"", "null", "\"b\"", "null"));
    EXPECT_THAT(values("none"), ElementsAre("null", "null", "null", "null"));
    EXPECT_THAT(values("bool"), ElementsAre("true", "false", "null", "true"));
    EXPECT_THAT(values("int8"), ElementsAre("-128", "127", "0", "null"));
    EXPECT_THAT(values("uint64"), ElementsAre("18446744073709551615", "0", "1", "2"));
    EXPECT_THAT(values("float"), ElementsAre("0.1", "1e+30", "null", "3"));
    EXPECT_THAT(values("double"), ElementsAre("0.1", "-1e+300", "null", "3"));
    EXPECT_THAT(values("when")[0], HasSubstr("2026-01-02 03:04:05"));
    EXPECT_THAT(values("price")[0], "\"1.50\"");
    for (const char* list : {"list", "large_list"}) {
      EXPECT_THAT(values(list), ElementsAre("[1,null]", "[]", "null", "[2]")) << list;
    }
    EXPECT_THAT(values("struct"), ElementsAre("{\"a\":1,\"b\":\"x\"}", "{\"b\":\"y\"}", "null", "{}"))
        << "a key whose value is null is left out";
    EXPECT_THAT(values("map"), ElementsAre("{\"k\":1}", "{}", "null", "{\"l\":2}"));
    EXPECT_THAT(values("json"), ElementsAre("{\"a\":  1}", "[]", "null", "\"b\"")) << "on one line";
    if (table_fixture(name).extension() == ".arrow") {
      EXPECT_THAT(values("fixed"), ElementsAre("[1,2]", "[3,4]", "[5,6]", "null"));
      EXPECT_THAT(values("list_view"), ElementsAre("[1,null]", "[]", "null", "[2]"));
    }
  }
  EXPECT_THAT(
      lines_of(table_fixture("types.arrow"), {.required = {"int8"}, .optional = {"bool", "absent"}})[1],
      "{\"bool\":false,\"int8\":127}");
}

TEST_F(Table, ConversationsAreThoseOfTheJsonLines) {
  const auto conversations = [](const DatasetConfig& columns) {
    ChatRowReader reader(columns);
    std::vector<ChatJson> read;
    while (const auto row = reader.next()) {
      ChatJson conversation = conversation_of(*row, columns);
      for (const char* key : {"tools", "chat_template_kwargs"}) {
        if (conversation.contains(key) && conversation[key].is_null()) {
          conversation.erase(key);
        }
      }
      read.push_back(std::move(conversation));
    }
    return read;
  };
  const auto at = [](const char* name) { return DatasetConfig{.path = table_fixture(name).string()}; };
  const auto expected = conversations(at("chat.jsonl"));
  ASSERT_EQ(expected.size(), 3u);
  for (const char* name : {"chat.parquet", "chat.arrow", "chat_datasets.parquet", "chat_json.parquet", "chat_json"}) {
    EXPECT_EQ(conversations(at(name)), expected) << name;
  }
  DatasetConfig columns{.prompt_key = "ask", .input_key = "more", .answer_key = "reply"};
  columns.path = table_fixture("question.jsonl").string();
  const auto answers = conversations(columns);
  ASSERT_EQ(answers.size(), 2u);
  columns.path = table_fixture("question.parquet").string();
  EXPECT_EQ(conversations(columns), answers);
}

// Templates ask whether the content of a message that only calls tools is none.
TEST_F(Table, ContentThatIsNullOrAbsentIsNone) {
  const ChatTemplate chat_template(
      "{% for m in messages %}{{ m.role }}={{ 'none' if m['content'] is none else m['content'] }}"
      "{{ '+call' if m.tool_calls }} {% endfor %}",
      "t.jinja");
  for (const char* name : {"calls.jsonl", "calls.parquet"}) {
    const DatasetConfig columns{.path = table_fixture(name).string()};
    ChatRowReader reader(columns);
    std::vector<std::string> texts;
    while (const auto row = reader.next()) {
      texts.push_back(chat_template.render(conversation_of(*row, columns)["messages"]).text);
    }
    EXPECT_THAT(
        texts,
        ElementsAre(
            "user=1+2.5? assistant=none+call tool=3.5 ",
            "user=1+2.5? assistant=none+call tool=3.5 ",
            "user=1+2.5? assistant=+call tool=3.5 "))
        << name;
  }
}

TEST_F(Table, LabelsAreThoseOfTheJsonLines) {
  const auto open = [](const std::filesystem::path& path) {
    return ClassificationDataset(path, BytesForTests(), {.max_length = 64, .text_key = "sentence"});
  };
  const auto expected = open(table_fixture("labels.jsonl"));
  const auto table = open(table_fixture("labels.parquet"));
  ASSERT_EQ(table.size(), 20);
  EXPECT_EQ(table.num_labels(), 3);
  for (int64_t i = 0; i < table.size(); ++i) {
    EXPECT_EQ(table.example(i).ids, expected.example(i).ids);
    EXPECT_EQ(table.example(i).label, expected.example(i).label);
  }
  const TemporaryFolder folder;
  for (const char* name : {"a-00000-of-00002.parquet", "a-00001-of-00002.parquet"}) {
    std::filesystem::copy_file(table_fixture("labels.parquet"), folder / name);
  }
  EXPECT_EQ(open(folder.path()).size(), 40);
}

TEST_F(Table, TheOrderOfTheDataIsThatOfTheJsonLines) {
  const auto open = [](const std::string& name) {
    DataConfig config;
    config.datasets = {
        {.path = table_fixture(name).string(), .weight = 2},
        {.path = repository("test/data/data/sst2_sample.txt").string()}};
    const TemporaryFolder cache;
    return open_data(
               config, BytesForTests(), {.seq_len = 64, .vocab_size = 257, .seed = 3, .cache_folder = cache.path()})
        .train;
  };
  const auto expected = open("hub.jsonl"), table = open("hub/data/train-*.parquet");
  EXPECT_EQ(table->fingerprint(), expected->fingerprint());
  const BatchPlan plan{.global_batch_size = 7, .num_rows = 7};
  for (const int64_t step : {0, 1, 5, 100, 1000}) {
    const auto a = make_batch(*expected, plan, step), b = make_batch(*table, plan, step);
    EXPECT_TRUE(a.input_ids.equal(b.input_ids) && a.labels.equal(b.labels)) << step;
  }
}

TEST_F(Table, ErrorsNameTheColumnAndTheRow) {
  const auto error_for = [](const std::string& name, const std::string& column) {
    return usage_error_of([&] { texts_of({.path = table_fixture(name), .text_key = column}); });
  };
  EXPECT_THAT(
      error_for("hub/data/train-00000-of-00002.parquet", "content"),
      HasSubstr("train-00000-of-00002.parquet: has no column \"content\"; text_key, messages_key and other keys of the "
                "dataset name its columns, which are: id (int64), text (utf8)"));
  EXPECT_THAT(error_for("types.arrow", "nulls"), HasSubstr("types.arrow:2: \"nulls\" is not a string"));
  EXPECT_THAT(error_for("types.parquet", "int8"), HasSubstr("types.parquet:1: \"int8\" is not a string"));
  EXPECT_THAT(error_for("types.arrow", "half"), HasSubstr("the column \"half\" has the type halffloat"));
  EXPECT_THAT(error_for("twice.arrow", "text"), HasSubstr("twice.arrow: has 2 columns \"text\""));
  EXPECT_THAT(
      usage_error_of([] {
        ClassificationDataset(
            table_fixture("types.parquet"),
            BytesForTests(),
            {.max_length = 9, .text_key = "nulls", .label_key = "int8"});
      }),
      HasSubstr("types.parquet:1: the label is -128"));
}

// The damage that copies and full disks do.
TEST_F(HostileTable, TruncatedFilesAreErrors) {
  const TemporaryFolder folder;
  for (const std::string name :
       {"hub/data/train-00001-of-00002.parquet", "saved/train/data-00000-of-00002.arrow", "types_file.arrow"}) {
    const std::string whole = read_file(table_fixture(name));
    const std::string column = name == "types_file.arrow" ? "string" : "text";
    for (size_t size = 0; size < whole.size(); size += size < 32 || size + 600 > whole.size() ? 3 : 311) {
      const auto path = write_file(folder / std::filesystem::path(name).filename().string(), whole.substr(0, size));
      EXPECT_NE(usage_error_of([&] { texts_of({.path = path, .text_key = column}); }), "") << name << " " << size;
    }
    const auto path = write_file(folder / std::filesystem::path(name).filename().string(), whole);
    EXPECT_EQ(usage_error_of([&] { texts_of({.path = path, .text_key = column}); }), "");
  }
}

TEST_F(HostileTable, AStreamMustEndAsItShould) {
  const TemporaryFolder folder;
  const std::string whole = read_file(table_fixture("saved/train/data-00000-of-00002.arrow"));
  const std::string mark = whole.substr(whole.size() - 8);
  const auto error_for = [&](const std::string& content) {
    const auto path = write_file(folder / "a.arrow", content);
    return usage_error_of([&] { texts_of({.path = path}); });
  };
  EXPECT_THAT(error_for(whole.substr(0, whole.size() - 8)), HasSubstr("a.arrow: is truncated, or not an Arrow file"));
  EXPECT_THAT(error_for(whole + whole), HasSubstr("a.arrow: is damaged: it continues after the end of its stream"));
  EXPECT_EQ(error_for(whole), "");
}

// Any byte changed to another one: the file is read, or refused by name; nothing else happens.
TEST_F(HostileTable, DamageIsAnErrorOrIsRead) {
  const TemporaryFolder folder;
  int64_t refused = 0, read = 0;
  for (const std::string name :
       {"types.parquet",
        "types.arrow",
        "types_file.arrow",
        "chat.parquet",
        "chat.arrow",
        "hub/data/train-00001-of-00002.parquet",
        "many_rows.parquet"}) {
    const std::string whole = read_file(table_fixture(name));
    RowKeys keys{
        .optional = {
            "string",
            "view",
            "coded",
            "struct",
            "list",
            "map",
            "json",
            "when",
            "fixed",
            "list_view",
            "nulls",
            "messages",
            "tools",
            "text"}};
    for (size_t i = 0; i < 100; ++i) {
      std::string content = whole;
      const size_t at = i * 2654435761u % whole.size();
      content[at] = static_cast<char>(i % 4 == 0 ? 0xFF : i % 4 == 1 ? 0x7F : content[at] ^ (1 << i % 8));
      const auto path = write_file(folder / ("a" + std::filesystem::path(name).extension().string()), content);
      try {
        lines_of(path, keys);
        ++read;
      } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::usage) << error.what();
        EXPECT_THAT(error.what(), HasSubstr(path.string())) << name << " " << at;
        ++refused;
      }
    }
  }
  EXPECT_GT(refused, 150);
  EXPECT_GT(read, 50);
}

TEST_F(HostileTable, BombsAreErrors) {
  EXPECT_THAT(
      usage_error_of([] { texts_of({.path = table_fixture("bomb.parquet")}); }),
      HasSubstr("bomb.parquet: expands to more than 1000 times its size"));
  EXPECT_EQ(texts_of({.path = table_fixture("many_rows.parquet")}).size(), 12'345u);
}

// Lists of nulls have no bytes, and views of one list have those of the list.
TEST_F(HostileTable, AFewBytesAreNotAnyNumberOfValues) {
  for (const char* name : {"nulls.arrow", "views.arrow"}) {
    const auto file = table_fixture(name);
    ASSERT_LT(std::filesystem::file_size(file), 64u << 10);
    EXPECT_THAT(
        usage_error_of([&] { lines_of(file, {.required = {"text"}}); }),
        testing::MatchesRegex(".*s.arrow: record batch 0 expands to more than 1000 times .* in row [1-9].*"))
        << name;
  }
}

// An index that lists the same pages or batches again and again would be any amount of work.
TEST_F(HostileTable, NothingIsReadTwice) {
  EXPECT_THAT(
      usage_error_of([] { texts_of({.path = table_fixture("repeated.parquet")}); }),
      HasSubstr("repeated.parquet: is damaged: the columns of its row groups have more bytes than the file"));
  EXPECT_THAT(texts_of({.path = table_fixture("repeated.arrow")}), ElementsAre("first", "second"))
      << "the index lists the first batch twice";
}

// The footer's numbers of rows, values and bytes, made huge one at a time.
TEST_F(HostileTable, NumbersOfTheFooterAreNotBelieved) {
  const TemporaryFolder folder;
  const std::string whole = read_file(table_fixture("many_rows.parquet"));
  const std::string rows = "\xF2\xC0\x01";  // 12345 as a varint of zigzag
  int64_t found = 0;
  for (size_t at = whole.find(rows); at != std::string::npos; at = whole.find(rows, at + 1)) {
    ++found;
    for (const char* other : {"\xF2\xC0\x7F", "\xF0\xC0\x01", "\xF1\xC0\x01"}) {
      std::string content = whole;
      content.replace(at, 3, other);
      const auto path = write_file(folder / "a.parquet", content);
      size_t count = 12'345;
      const std::string error = usage_error_of([&] { count = texts_of({.path = path}).size(); });
      EXPECT_TRUE(!error.empty() || count == 12'345) << "rows appeared or got lost: " << count;
    }
  }
  EXPECT_GE(found, 3) << "of the file, the row group, and its column";
}

TEST(TableFolder, SplitsAreNotMixed) {
  EXPECT_THAT(
      usage_error_of([] { list_files({.path = table_fixture("hub")}); }),
      testing::AllOf(
          HasSubstr("table/hub: has the splits test, train, of which a dataset is one"),
          HasSubstr("path = \"" + table_fixture("hub/data/train-*.parquet").string() + "\"")));
  EXPECT_THAT(
      usage_error_of([] { list_files({.path = table_fixture("saved")}); }),
      HasSubstr("path = \"" + table_fixture("saved/train").string() + "\""));
  EXPECT_EQ(list_files({.path = table_fixture("hub/data/train-*.parquet")}).size(), 2u);
  EXPECT_EQ(list_files({.path = table_fixture("saved/*")}).size(), 3u) << "asked for by name";
}

TEST(TableFolder, DescriptionsAndCachesAreNotData) {
  const auto files = list_files({.path = table_fixture("saved/train")});
  EXPECT_THAT(
      files,
      ElementsAre(
          table_fixture("saved/train/data-00000-of-00002.arrow"),
          table_fixture("saved/train/data-00001-of-00002.arrow")));
  const TemporaryFolder folder;
  std::filesystem::copy(table_fixture("saved/train"), folder.path(), std::filesystem::copy_options::recursive);
  std::filesystem::copy_file(folder / "data-00001-of-00002.arrow", folder / "tmp-1.arrow");
  EXPECT_EQ(list_files({.path = folder.path()}).size(), 2u) << "without a table that state.json does not list";
  std::filesystem::remove(folder / "data-00001-of-00002.arrow");
  EXPECT_THAT(
      usage_error_of([&] { list_files({.path = folder.path()}); }),
      HasSubstr("state.json: lists data-00001-of-00002.arrow, which is not in the folder"));
  write_file(folder / "state.json", "{\"_data_files\": [{\"filename\": \"../a.arrow\"}]}");
  EXPECT_THAT(usage_error_of([&] { list_files({.path = folder.path()}); }), HasSubstr("lists ../a.arrow"));
  write_file(folder / "state.json", "{\"_data_files\": [], \"_indices_data_files\": [{\"filename\": \"i.arrow\"}]}");
  EXPECT_THAT(usage_error_of([&] { list_files({.path = folder.path()}); }), HasSubstr("a selection from the tables"));
  write_file(folder / "state.json", "{\"other\": 1}");
  EXPECT_EQ(list_files({.path = folder.path()}).size(), 2u) << "without the cache, as its name says what it is";
}

TEST(TableFolder, NamesOfSplits) {
  const TemporaryFolder folder;
  const auto splits = [&](const std::vector<std::string>& names) {
    for (const auto& name : names) {
      write_file(folder / name, "");
    }
    const std::string error = usage_error_of([&] { list_files({.path = folder.path()}); });
    for (const auto& entry : std::filesystem::directory_iterator(folder.path())) {
      std::filesystem::remove_all(entry);
    }
    const size_t begin = error.find("splits "), end = error.find(", of which");
    return begin == std::string::npos ? error : error.substr(begin + 7, end - begin - 7);
  };
  EXPECT_EQ(
      splits({"data/train_sft-00000-of-00003.parquet", "data/test_sft-00000-of-00001-5f0c.parquet"}),
      "test_sft, train_sft");
  EXPECT_EQ(splits({"default/train/0000.parquet", "default/validation/0000.parquet"}), "train, validation");
  EXPECT_EQ(splits({"train.parquet", "wiki-test.v2.parquet"}), "test, train");
  EXPECT_EQ(splits({"train/data-00000-of-00001.arrow", "test/data-00000-of-00001.arrow"}), "test, train");
  EXPECT_EQ(splits({"sample/10BT/000_00000.parquet", "sample/10BT/001_00000.parquet"}), "");
  EXPECT_EQ(splits({"train.parquet", "more.parquet", "contest.parquet"}), "") << "contest is no test";
  EXPECT_EQ(splits({"train.jsonl", "test.jsonl"}), "") << "JSON lines are all read, as they always were";
}

TEST(TableFolder, TheSuggestedPathNamesASplitBelowASlash) {
  const TemporaryFolder folder;
  write_file(folder / "train.parquet", "");
  write_file(folder / "test.parquet", "");
  for (const char* slash : {"", "/"}) {
    EXPECT_THAT(
        usage_error_of([&] { list_files({.path = folder.path().string() + slash}); }),
        HasSubstr("path = \"" + (folder / "train.parquet").string() + "\""))
        << slash;
  }
}

TEST(TableFolder, PatternsMatchFilesAndFolders) {
  const TemporaryFolder folder;
  for (const char* name : {"a-1.jsonl", "a-2.jsonl", "b.jsonl", "c/d.jsonl", "c/README.md", "x[1].txt"}) {
    write_file(folder / name, "{\"text\": \"" + std::string(name) + "\"}\n");
  }
  const auto names = [&](const char* pattern) {
    std::string found;
    for (const auto& file : list_files({.path = folder / pattern})) {
      found += file.lexically_relative(folder.path()).string() + " ";
    }
    return found;
  };
  EXPECT_EQ(names("a-*.jsonl"), "a-1.jsonl a-2.jsonl ");
  EXPECT_EQ(names("[ab]-?.jsonl"), "a-1.jsonl a-2.jsonl ");
  EXPECT_EQ(names("*"), "a-1.jsonl a-2.jsonl b.jsonl c/d.jsonl x[1].txt ");
  EXPECT_EQ(names("x[1].txt"), "x[1].txt ") << "a file of that name is no pattern";
  EXPECT_THAT(usage_error_of([&] { names("z-*"); }), HasSubstr("z-*: no such file or folder"));
  EXPECT_TRUE(is_there(folder / "a-*") && !is_there(folder / "z-*"));
}

TEST(TableFolder, TheStateOfAnotherProgramIsNone) {
  const TemporaryFolder outside, folder;
  write_file(folder / "a.txt", "a");
  for (const char* content : {"[1]", "7", "{\"other\": 1}", "damaged"}) {
    write_file(folder / "state.json", content);
    EXPECT_EQ(list_files({.path = folder.path(), .kind = TextKind::text}).size(), 1u) << content;
    EXPECT_EQ(list_files({.path = folder.path()}).size(), 1u) << content;
  }
  write_file(folder / "b.arrow", "");
  EXPECT_THAT(usage_error_of([&] { list_files({.path = folder.path()}); }), HasSubstr("state.json"));
  EXPECT_EQ(list_files({.path = folder.path(), .kind = TextKind::text}).size(), 1u);
  write_file(folder / "state.json", "[1]");
  EXPECT_EQ(list_files({.path = folder.path()}).size(), 2u);
  write_file(outside / "secret.json", "{}");
  std::filesystem::remove(folder / "state.json");
  std::filesystem::create_symlink(outside / "secret.json", folder / "state.json");
  for (const auto& path : {folder.path(), folder / "*"}) {
    EXPECT_THAT(
        usage_error_of([&] { list_files({.path = path}); }), HasSubstr("state.json: is a link out of its folder"));
  }
  EXPECT_EQ(list_files({.path = folder.path(), .kind = TextKind::text}).size(), 1u);
}

TEST(TableFolder, PatternsLeaveOutWhatFoldersDo) {
  EXPECT_EQ(list_files({.path = table_fixture("hub/*/train*")}).size(), 2u);
  EXPECT_EQ(list_files({.path = table_fixture("saved/train/*.arrow")}).size(), 2u) << "without the cache";
  EXPECT_EQ(list_files({.path = table_fixture("saved/train/*")}).size(), 2u);
  const TemporaryFolder folder;
  for (const char* name : {"a.parquet", "README.md", "b.txt", "x.csv", "y.csv", "cache-1.arrow", "c-old.arrow"}) {
    write_file(folder / name, "");
  }
  EXPECT_THAT(list_files({.path = folder / "[aR]*"}), ElementsAre(folder / "a.parquet"));
  EXPECT_THAT(list_files({.path = folder / "R*"}), ElementsAre(folder / "README.md")) << "there is no other";
  EXPECT_THAT(list_files({.path = folder / "*", .kind = TextKind::text}), ElementsAre(folder / "b.txt"));
  EXPECT_THAT(
      usage_error_of([&] { list_files({.path = folder / "*.csv"}); }), HasSubstr("x.csv: .csv files are tables"));
  EXPECT_THAT(
      list_files({.path = folder / "*.csv", .kind = TextKind::text}), ElementsAre(folder / "x.csv", folder / "y.csv"))
      << "as that message says";
  EXPECT_THAT(usage_error_of([&] { list_files({.path = folder / "cache*"}); }), HasSubstr("descriptions and caches"));
  write_file(folder / "state.json", "{\"_data_files\": [{\"filename\": \"a.parquet\"}]}");
  EXPECT_THAT(list_files({.path = folder / "*", .kind = TextKind::rows}), ElementsAre(folder / "a.parquet"));
}

TEST(TableFolder, ALinkToNothingIsNoPattern) {
  const TemporaryFolder folder;
  for (const char* name : {"a*.txt", "b?.txt", "c[d].txt"}) {
    std::filesystem::create_symlink("gone", folder / name);
    EXPECT_THAT(
        usage_error_of([&] { list_files({.path = folder / name}); }),
        HasSubstr((folder / name).string() + ": no such file or folder"));
  }
}

TEST(TableFolder, WithoutTheModuleTheRemedyIsNamed) {
  if (open_arrow().empty()) {
    GTEST_SKIP() << "this build reads tables";
  }
  EXPECT_THAT(
      usage_error_of([] { texts_of({.path = table_fixture("hub/data/train-*.parquet")}); }),
      testing::AllOf(
          HasSubstr("train-00000-of-00002.parquet: Parquet and Arrow files need Apache Arrow: "),
          HasSubstr("'make build ARROW=1'")));
}

}  // namespace
}  // namespace lehr::data
