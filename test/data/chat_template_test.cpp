// Conversations as text: the templates of Hugging Face folders render the same text as in transformers.
#include "lehr/data/chat_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "test/data/tokenizer_support.h"

namespace lehr::data {
namespace {

using testing::HasSubstr;

ChatJson hello() {
  return ChatJson::parse(R"([{"role": "user", "content": "Hi"}])");
}

TEST(ChatTemplate, RendersQwen3AsTransformersDoes) {
  const auto chat = load_chat_template(fixture("qwen3").string());
  LineReader lines(open_bytes(fixture("cases/chat.jsonl")));
  int64_t count = 0;
  for (std::string_view line; lines.next(line); ++count) {
    ChatJson row = ChatJson::parse(line);
    ChatJson variables = ChatJson::object();
    if (row.contains("enable_thinking")) {
      variables["enable_thinking"] = row["enable_thinking"];
    }
    ChatOptions options;
    options.add_generation_prompt = row["add_generation_prompt"].get<bool>();
    options.variables = &variables;
    const std::string text = chat->render(row["messages"], options).text;
    EXPECT_EQ(text, row["text"].get<std::string>());
    EXPECT_EQ(qwen3().encode(text), row["ids"].get<std::vector<int32_t>>()) << text;
  }
  EXPECT_EQ(count, 8);
}

TEST(ChatTemplate, RendersToolsAsJsonLikePython) {
  const auto chat = load_chat_template(fixture("qwen3").string());
  const ChatJson tools = ChatJson::parse(R"([{"type":"function","function":{"name":"f","x":[1.0,1e-7,"ü\n"]}}])");
  ChatOptions options;
  options.tools = &tools;
  EXPECT_THAT(
      chat->render(hello(), options).text,
      HasSubstr("<tools>\n{\"type\": \"function\", \"function\": {\"name\": \"f\", \"x\": [1.0, 1e-07, "
                "\"ü\\n\"]}}\n</tools>"));
}

TEST(ChatTemplate, HasSpecialTokensVariablesAndTheDate) {
  const TemporaryFolder folder;
  write_file(
      folder / "tokenizer_config.json",
      R"({"bos_token": {"content": "<s>"}, "eos_token": "</s>", "unk_token": null,
          "chat_template": "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}{{ unk_token is defined }} {{ tools is none }} {{ style }}"})");
  const auto chat = load_chat_template(folder.path().string());
  const ChatJson variables = ChatJson::parse(R"({"style": "brief"})");
  ChatOptions options;
  options.variables = &variables;
  EXPECT_EQ(chat->render(hello(), options).text, "<s>Hi</s>False True brief");

  const ChatTemplate dated("{{ strftime_now('%d %b %Y') }}", "t");
  EXPECT_EQ(dated.render(hello()).text, "26 Jul 2024") << "data must not change from day to day";
  options.now = 0;
  EXPECT_EQ(dated.render(hello(), options).text, "01 Jan 1970");
}

TEST(ChatTemplate, ReadsAFileOfItsOwnFirstAndListsByName) {
  const TemporaryFolder folder;
  const auto config = folder / "tokenizer_config.json";
  write_file(
      config,
      R"({"chat_template": [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "with tools"}]})");
  const auto listed = load_chat_template(folder.path().string());
  const ChatJson tools = ChatJson::parse("[{}]");
  ChatOptions options;
  EXPECT_EQ(listed->render(hello(), options).text, "plain");
  options.tools = &tools;
  EXPECT_EQ(listed->render(hello(), options).text, "with tools");

  write_file(folder / "chat_template.jinja", "own\n");
  EXPECT_EQ(load_chat_template(folder.path().string())->render(hello()).text, "own");
  EXPECT_EQ(load_chat_template((folder / "chat_template.jinja").string())->render(hello()).text, "own");
}

std::string rendered(const std::string& what, const std::string& tokenizer) {
  return load_chat_template(what, tokenizer)->render(hello()).text;
}

TEST(ChatTemplate, TheSpecialTokensAreThoseOfTheTokenizerAlsoIfItsFileIsNamed) {
  const TemporaryFolder tokenizer, other;
  const std::string own = write_file(tokenizer / "tokenizer.json", "{}").string();
  write_file(tokenizer / "tokenizer_config.json", R"({"bos_token": "<s>", "chat_template": "folder {{ bos_token }}"})");
  const std::string file = write_file(other / "f.jinja", "file {{ bos_token }}").string();
  for (const std::string& name : {tokenizer.path().string(), own, own + ".gz"}) {
    EXPECT_EQ(rendered(file, name), "file <s>") << name;
    EXPECT_EQ(rendered(name, name), "folder <s>") << name;
    EXPECT_TRUE(has_chat_template(name)) << name;
  }
  EXPECT_EQ(rendered(file, ""), "file ");
  write_file(other / "chat_template.jinja", "other {{ bos_token }}");
  write_file(other / "tokenizer_config.json", R"({"bos_token": "<other>"})");
  EXPECT_EQ(rendered(other.path().string(), own), "other <s>");
  EXPECT_EQ(rendered(other.path().string(), "byte"), "other <other>") << "the byte tokenizer has none";
}

TEST(ChatTemplate, ATokenizerOfAnotherNameIsNoTemplate) {
  const TemporaryFolder folder;
  const std::string file = write_file(folder / "other.json", "{}").string();
  EXPECT_FALSE(has_chat_template(file));
  EXPECT_THAT(
      usage_error_of([&] { load_chat_template(file, file, "tokenizer.path"); }),
      HasSubstr("other.json: is a tokenizer, not a chat template; set tokenizer.chat_template to a template file"));
}

TEST(ChatTemplate, ReportsAFolderWithoutATemplate) {
  const TemporaryFolder folder;
  const auto message = [&](const std::string& what) {
    return usage_error_of([&] { load_chat_template(what, "", "tokenizer.path"); });
  };
  EXPECT_THAT(message(folder.path().string()), HasSubstr("the folder has no chat template"));
  EXPECT_THAT(
      message("byte"),
      HasSubstr("tokenizer.path: the byte tokenizer has no chat template; set tokenizer.chat_template to"));
  EXPECT_THAT(
      usage_error_of([] { load_chat_template("byte", "", "lehr generate --chat", "--chat-template"); }),
      HasSubstr("lehr generate --chat: the byte tokenizer has no chat template; set --chat-template to"));
  EXPECT_THAT(message("no/such.jinja"), HasSubstr("no/such.jinja: no such file or folder"));
  write_file(folder / "tokenizer_config.json", R"({"chat_template": [{"name": "rag", "template": "x"}]})");
  EXPECT_THAT(message(folder.path().string()), HasSubstr("no template with the name \"default\""));
  write_file(folder / "tokenizer_config.json", "{");
  EXPECT_THAT(message(folder.path().string()), HasSubstr("tokenizer_config.json: invalid JSON"));
  write_file(folder / "tokenizer_config.json", "{}");
  write_file(folder / "chat_template.jinja", "a\n{% if %}");
  EXPECT_THAT(message(folder.path().string()), HasSubstr("chat_template.jinja:2: expected a value, found '%}'"));
}

}  // namespace
}  // namespace lehr::data
