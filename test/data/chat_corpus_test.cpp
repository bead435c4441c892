// Files of conversations as sequences of training data.
#include "lehr/data/chat_corpus.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "lehr/data/chat_rows.h"
#include "lehr/data/loader.h"
#include "lehr/data/open_data.h"
#include "test/data/support.h"

namespace lehr::data {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::UnorderedElementsAre;

/// "U<question>.A<answer>." in bytes; the dot ends a turn.
std::shared_ptr<const ChatTemplate> short_template() {
  return std::make_shared<const ChatTemplate>(
      "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system message here') }}{% endif %}"
      "{{ 'A' if m.role == 'assistant' else 'U' }}{{ m.content }}.{% endfor %}{% if add_generation_prompt %}A{% endif "
      "%}",
      "t.jinja");
}

std::string row(const std::string& question, const std::string& answer) {
  return R"({"messages": [{"role": "user", "content": ")" + question + R"("}, {"role": "assistant", "content": ")" +
         answer + "\"}]}\n";
}

DataConfig chat_config(const std::filesystem::path& path) {
  DataConfig config;
  config.datasets.push_back({.path = path.string(), .kind = DatasetKind::chat});
  config.shuffle = false;
  return config;
}

LanguageData open(const DataConfig& config, int64_t seq_len, std::vector<std::string>* said = nullptr) {
  return open_data(
      config,
      BytesForTests(),
      {.seq_len = seq_len,
       .vocab_size = 257,
       .inform =
           [=](const std::string& text) {
             if (said != nullptr) {
               said->push_back(text);
             }
           },
       .chat_template = short_template()});
}

/// The inputs of a sequence as text, and below them the label of each; '_' where the token has no label.
std::vector<std::string> shown(const Sample& sample) {
  std::string inputs, labels;
  for (size_t i = 0; i < sample.input_ids.size(); ++i) {
    inputs += sample.document_ids[i] < 0 ? ' ' : static_cast<char>(sample.input_ids[i]);
    labels += sample.labels[i] == kNoLabel ? '_' : static_cast<char>(sample.labels[i]);
  }
  return {inputs, labels};
}

TEST(ChatCorpus, OnlyAnswersAreLabelsAndConversationsArePacked) {
  const TemporaryFolder folder;
  const std::string two_turns =
      R"({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "xy"}, )"
      R"({"role": "user", "content": "r"}, {"role": "assistant", "content": "z"}]})";
  const auto path = write_file(folder / "a.jsonl", two_turns + "\n" + row("ab", "c"));
  const LanguageData data = open(chat_config(path), 24);
  const Sample sample = data.train->sample_at(0);
  EXPECT_THAT(shown(sample), ElementsAre("Uq.Axy.Ur.Az.Uab.Ac.    ", "___xy.____z._____c._____"));
  EXPECT_EQ(sample.position_ids[13], 0) << "positions start again with each conversation";
  EXPECT_EQ(sample.document_ids[12], 0);
  EXPECT_EQ(sample.document_ids[13], 1);
  EXPECT_EQ(sample.document_ids[23], kNoDocument);
  EXPECT_TRUE(make_batch(*data.train, {.global_batch_size = 1, .num_rows = 1}, 0).has_packing);
}

TEST(ChatCorpus, ReadsListsLinesAndFolders) {
  const TemporaryFolder folder;
  write_file(folder / "b.json", "\n [\n" + row("1", "2") + ",\n" + row("]", "}\\\"") + "]\n");
  write_file(folder / "a.jsonl", "\xEF\xBB\xBF" + row("3", "4") + "\n  \n" + row("5", "6"));
  write_file(folder / "c.json", "[]");
  ChatRowReader reader({.path = folder.path().string()});
  std::vector<std::string> places;
  while (const auto read = reader.next()) {
    places.push_back(read->where().substr(folder.path().string().size() + 1));
  }
  EXPECT_THAT(places, ElementsAre("a.jsonl:1", "a.jsonl:4", "b.json:3", "b.json:5"));
  const LanguageData data = open(chat_config(folder.path()), 40);
  EXPECT_EQ(shown(data.train->sample_at(0))[0], "U3.A4.U5.A6.U1.A2.U].A}\".               ");
}

TEST(ChatCorpus, HalfASurrogatePairIsReplacedAndToldOnce) {
  const TemporaryFolder folder;
  const std::string rows = row("a", "b") + row("q\\ud83d", "r") + row("s", "\\ude00");
  std::vector<std::string> said;
  open(chat_config(write_file(folder / "a.jsonl", rows)), 32, &said);
  EXPECT_THAT(
      said,
      UnorderedElementsAre(
          HasSubstr("a.jsonl:2: the first of 2 texts with half of a surrogate pair"), HasSubstr("3 conv")));
}

TEST(ChatCorpus, ColumnsMakeAQuestionAndAnAnswer) {
  const TemporaryFolder folder;
  const auto path = write_file(
      folder / "a.jsonl",
      "{\"instruction\": \"do\", \"input\": \"x\", \"output\": \"y\"}\n{\"instruction\": \"go\", \"input\": \"\", "
      "\"output\": \"z\"}\n");
  DataConfig config = chat_config(path);
  config.datasets[0].prompt_key = "instruction";
  config.datasets[0].input_key = "input";
  config.datasets[0].answer_key = "output";
  EXPECT_THAT(
      shown(open(config, 20).train->sample_at(0)), ElementsAre("Udo\n\nx.Ay.Ugo.Az.   ", "_______y._____z.____"));
  config.datasets[0].answer_key = "response";
  EXPECT_THAT(
      usage_error_of([&] { open(config, 20); }),
      HasSubstr("a.jsonl:1: the object has no key \"response\", which answer_key names"));
}

TEST(ChatCorpus, ReadsShareGptsKeysAndRoles) {
  const TemporaryFolder folder;
  const std::string first =
      R"({"id": "1", "conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "xy"}]})";
  const std::string weights =
      R"({"messages": [{"from": "human", "value": "r", "weight": 0}, {"from": "gpt", "value": "s", "weight": 0.0}, )"
      R"({"from": "tool", "value": "t"}, {"from": "gpt", "value": "u", "weight": 1.0}]})";
  DataConfig config = chat_config(write_file(folder / "a.jsonl", first + "\n" + weights + "\n"));
  EXPECT_THAT(shown(open(config, 20).train->sample_at(0)), ElementsAre("Uq.Axy.Ur.As.Ut.Au. ", "___xy.__________u.__"));

  config.datasets[0].messages_key = "turns";
  write_file(folder / "a.jsonl", R"({"turns": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]})");
  EXPECT_EQ(shown(open(config, 8).train->sample_at(0))[0], "Uq.Aa.  ");
  write_file(folder / "a.jsonl", R"({"turns": [{"from": "human", "content": "q"}, {"from": "gpt", "value": "a"}]})");
  EXPECT_EQ(shown(open(config, 8).train->sample_at(0))[0], "Uq.Aa.  ") << "a content is not removed";
  write_file(folder / "a.jsonl", first);
  EXPECT_THAT(usage_error_of([&] { open(config, 8); }), HasSubstr("the object has no key \"turns\""));
}

TEST(ChatCorpus, ShareGptsSystemBesideTheMessagesIsTheFirstOne) {
  const auto conversation = [](const std::string& text) { return conversation_of({.text = text, .file = "a"}, {}); };
  const std::string messages = R"([{"from": "human", "value": "q"}, {"from": "assistant", "value": "a"}])";
  const auto expected = [](const std::string& system) {
    return ChatJson::parse(
        R"({"messages": [)" + system + R"({"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]})");
  };
  EXPECT_EQ(
      conversation(R"({"system": "s", "conversations": )" + messages + "}"),
      expected(R"({"role": "system", "content": "s"}, )"));
  for (const char* none : {"\"\"", "null"}) {
    EXPECT_EQ(
        conversation(R"({"system": )" + std::string(none) + R"(, "conversations": )" + messages + "}"), expected(""));
  }
}

TEST(ChatCorpus, LongConversationsAreDroppedOrTruncatedAndCounted) {
  const TemporaryFolder folder;
  const auto path =
      write_file(folder / "a.jsonl", row("a", "b") + row("c", "a long answer") + row("a long question", "d"));
  DataConfig config = chat_config(path);
  std::vector<std::string> said;
  EXPECT_EQ(open(config, 10, &said).train->parts()[0].rows.stream().num_documents(), 1);
  EXPECT_THAT(said, ElementsAre(HasSubstr("1 conversations; 2 longer than training.seq_len = 10 were dropped")));
  config.datasets[0].too_long = TooLong::truncate;
  said.clear();
  const LanguageData data = open(config, 10, &said);
  EXPECT_THAT(
      said, ElementsAre(HasSubstr("2 conversations; 2 longer than training.seq_len = 10 were truncated, 1 without")));
  EXPECT_THAT(shown(data.train->sample_at(1)), ElementsAre("Uc.Aa long", "___a long_"));
  EXPECT_THAT(usage_error_of([&] { open(config, 4); }), HasSubstr("no conversation is left to train on"));
}

TEST(ChatCorpus, HoldsOutWholeConversationsAndIncludesLabelsInTheFingerprint) {
  const TemporaryFolder folder;
  std::string rows;
  for (char c = 'a'; c <= 'j'; ++c) {
    rows += row(std::string(1, c), std::string(1, c));
  }
  DataConfig config = chat_config(write_file(folder / "a.jsonl", rows));
  config.validation_fraction = 0.25;
  const LanguageData data = open(config, 6);
  EXPECT_EQ(data.train->parts()[0].rows.size(), 8);
  EXPECT_EQ(data.validation->parts()[0].rows.size(), 2);
  EXPECT_THAT(shown(data.validation->sample_at(0)), ElementsAre("Ui.Ai.", "___i._"));

  config.validation_fraction = 0;
  config.validation_path = write_file(folder / "b.jsonl", row("v", "w")).string();
  EXPECT_THAT(shown(open(config, 6).validation->sample_at(0)), ElementsAre("Uv.Aw.", "___w._")) << "of the same kind";

  // The same tokens with other labels are other data.
  const auto fingerprint = [&](const char* marks) {
    OpenDataOptions options{.seq_len = 6, .vocab_size = 257};
    options.chat_template =
        std::make_shared<const ChatTemplate>(std::string("{% for m in messages %}") + marks + "{% endfor %}", "t");
    return open_data(config, BytesForTests(), options).train->fingerprint();
  };
  EXPECT_NE(
      fingerprint("{% generation %}{{ m.content }}{% endgeneration %}"),
      fingerprint("{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{% endgeneration %}{% else %}"
                  "{{ m.content }}{% endif %}"));
}

TEST(ChatCorpus, MixesWithText) {
  const TemporaryFolder folder;
  DataConfig config = chat_config(write_file(folder / "a.jsonl", row("a", "b")));
  config.datasets.push_back({.path = write_file(folder / "b.txt", "some text").string()});
  const LanguageData data = open(config, 6);
  const auto labels = [&](int64_t index) { return shown(data.train->sample_at(index))[1]; };
  EXPECT_THAT((std::vector{labels(0), labels(1)}), UnorderedElementsAre("___b._", "ome te"));
}

TEST(ChatCorpus, NamesFileAndLineOfInvalidConversations) {
  const TemporaryFolder folder;
  const auto message = [&](const std::string& name, const std::string& content) {
    const auto path = write_file(folder / name, content);
    return usage_error_of([&] { open(chat_config(path), 64); });
  };
  const std::string good = row("a", "b");
  const std::vector<std::pair<std::string, std::string>> lines{
      {"{\"text\": \"a\"}\n", "a.jsonl:2: the object has no key \"messages\". messages_key names"},
      {"{\"messages\": []}\n", "a.jsonl:2: messages: the conversation is empty"},
      {"{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}]}\n", "a.jsonl:2: messages: no message has the role"},
      {"{\"messages\": \n", "a.jsonl:2: not valid JSON: "},
      {R"({"tools": )" + std::string(100000, '[') + std::string(100000, ']') + "," + good.substr(1),
       "nested more than"},
      {"[1]\n", "a.jsonl:2: expected a JSON object, found array"},
      {R"({"conversations": [{"from": "function_call", "value": "f"}, {"from": "gpt", "value": "b"}]})",
       "a.jsonl:2: messages[0].from: expected human or user, gpt or assistant, system, tool or observation, found \"function_call\"; write"},
      {R"({"conversations": [{"from": 1, "value": "a"}]})", "observation, found \"1\""},
      {R"({"conversations": [{"from": "human"}, {"from": "gpt", "value": "b"}]})",
       "a.jsonl:2: messages[0]: has neither \"content\" nor \"tool_calls\""},
      {R"({"system": "s", "conversations": [{"from": "system", "value": "a"}, {"from": "gpt", "value": "b"}]})",
       "a.jsonl:2: system: there is another system message in messages[0]"},
      {"\xFF\n", "a.jsonl:2: not valid UTF-8"},
      {R"({"messages": [{"role": "system", "content": "s"}, {"role": "assistant", "content": "a"}]})",
       "a.jsonl:2: t.jinja:1: the template refuses this: no system message here"}};
  for (const auto& [line, expected] : lines) {
    EXPECT_THAT(message("a.jsonl", good + line), HasSubstr(expected));
  }
  EXPECT_THAT(message("a.json", "[\n" + good + ",\n{\"messages\": []}]"), HasSubstr("a.json:4: messages: the conv"));
  EXPECT_THAT(message("a.json", "[\n" + good), HasSubstr("a.json:2: the list is not terminated"));
  EXPECT_THAT(message("a.json", "[" + good + "]\n[" + good + "]"), HasSubstr("a.json:3: the list ends before this"));
  EXPECT_THAT(message("a.json", "[] x"), HasSubstr("a.json:1: the list ends before this"));
  EXPECT_THAT(message("a.json", "[]"), HasSubstr("a.json: holds no conversation"));
  EXPECT_THAT(message("a.jsonl", ""), HasSubstr("a.jsonl: holds no conversation"));
  EXPECT_THAT(message("a.csv", "messages\n"), HasSubstr(".csv files are tables"));
}

TEST(ChatCorpus, ConfigRefusesKeysThatDoNotBelongTogether) {
  const auto keys = [](const DatasetConfig& dataset) {
    DataConfig config;
    config.datasets.push_back(dataset);
    Problems problems;
    config.check(problems);
    std::vector<std::string> found;
    for (const auto& item : problems.items()) {
      found.push_back(item.key);
    }
    return found;
  };
  const DatasetConfig chat{.path = "a", .kind = DatasetKind::chat};
  DatasetConfig half = chat, no_question = chat, text{.path = "a"};
  half.prompt_key = "question";
  no_question.input_key = "input";
  text.answer_key = "answer";
  EXPECT_THAT(keys(chat), ElementsAre());
  EXPECT_THAT(keys(half), ElementsAre("data.datasets.0.answer_key"));
  EXPECT_THAT(keys(no_question), ElementsAre("data.datasets.0.input_key"));
  EXPECT_THAT(keys(text), ElementsAre("data.datasets.0.kind"));
}

}  // namespace
}  // namespace lehr::data
