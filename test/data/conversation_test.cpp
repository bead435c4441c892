// The tokens of a conversation, and which of them are answers.
#include "lehr/data/conversation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "test/data/tokenizer_support.h"

namespace lehr::data {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

const ConversationEncoder& qwen3_encoder() {
  static const ConversationEncoder encoder(load_chat_template(fixture("qwen3").string()), qwen3());
  return encoder;
}

ConversationEncoder encoder_of(const std::string& source) {
  return {std::make_shared<const ChatTemplate>(source, "t.jinja"), qwen3()};
}

std::vector<std::string> answers(const ConversationEncoder& encoder, const std::string& conversation) {
  const auto marked = encoder.mark(ChatJson::parse(conversation));
  std::vector<std::string> texts;
  for (const auto& [begin, end] : marked.answers) {
    texts.push_back(marked.text.substr(begin, end - begin));
  }
  return texts;
}

constexpr const char* kTwoTurns = R"({"messages": [
  {"role": "system", "content": "Be brief."},
  {"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "<think>\neasy\n</think>\n\n4"},
  {"role": "user", "content": "3+3?"}, {"role": "assistant", "content": "<think>\nhm\n</think>\n\n6"}]})";

constexpr const char* kTools = R"({"messages": [
  {"role": "user", "content": "Rain?"},
  {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "look", "arguments": {"at": "sky"}}}]},
  {"role": "tool", "content": "blue"}, {"role": "assistant", "content": "No."}]})";

TEST(Conversation, AnswersAreTheAssistantsTextAndTheTokenThatEndsTheTurn) {
  EXPECT_THAT(answers(qwen3_encoder(), kTwoTurns), ElementsAre("4<|im_end|>", "<think>\nhm\n</think>\n\n6<|im_end|>"))
      << "Qwen3 leaves the thoughts of earlier turns out";
  EXPECT_THAT(
      answers(qwen3_encoder(), kTools),
      ElementsAre(
          "<tool_call>\n{\"name\": \"look\", \"arguments\": {\"at\": \"sky\"}}\n</tool_call><|im_end|>",
          "<think>\n\n</think>\n\nNo.<|im_end|>"));
}

// The template of GPT-OSS is one of those that refuse a tool's answer without the call before it.
TEST(Conversation, AnswersMayBeCallsWithoutWhichTheTemplateRefusesTheRest) {
  const auto encoder = encoder_of(
      "{%- for m in messages -%}"
      "{%- if m.role == 'tool' and not messages[loop.index0 - 1].tool_calls -%}"
      "{{ raise_exception('no call before it') }}{%- endif -%}"
      "<|im_start|>{{ m.role }}\n{{ m.content }}"
      "{%- if m.tool_calls -%}{{ m.tool_calls[0].function.name }}{%- endif -%}<|im_end|>\n"
      "{% endfor -%}"
      "{%- if add_generation_prompt -%}<|im_start|>assistant\n{% endif -%}");
  EXPECT_THAT(answers(encoder, kTools), ElementsAre("look<|im_end|>", "No.<|im_end|>"));
}

TEST(Conversation, ReadsTemplateVariablesFromItsObject) {
  EXPECT_THAT(
      answers(
          qwen3_encoder(),
          R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}],
              "chat_template_kwargs": {"enable_thinking": false}})"),
      ElementsAre("b<|im_end|>"))
      << "the prompt of a model that does not think ends behind the empty thought";
}

TEST(Conversation, TokensAreThoseOfTheWholeTextIfBordersAreSpecialTokens) {
  const auto encoded = qwen3_encoder().encode(ChatJson::parse(kTwoTurns));
  const auto marked = qwen3_encoder().mark(ChatJson::parse(kTwoTurns));
  EXPECT_EQ(encoded.ids, qwen3().encode(marked.text));
  ASSERT_EQ(encoded.ids.size(), encoded.learned.size());
  std::vector<int32_t> learned;
  for (size_t i = 0; i < encoded.ids.size(); ++i) {
    if (encoded.learned[i] != 0) {
      learned.push_back(encoded.ids[i]);
    }
  }
  EXPECT_EQ(qwen3().decode(learned), "4<|im_end|><think>\nhm\n</think>\n\n6<|im_end|>");
}

TEST(Conversation, ABorderInsideATokenSplitsIt) {
  // "ab" is one token of Qwen3; at inference the prompt always ends after "a".
  const auto encoder = encoder_of(
      "{% for m in messages %}{{ m.content }}{% if m.role == 'assistant' %}<|im_end|>{% endif %}{% endfor %}");
  const auto encoded = encoder.encode(
      ChatJson::parse(R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]})"));
  EXPECT_EQ(encoded.ids, (std::vector<int32_t>{qwen3().encode("a")[0], qwen3().encode("b")[0], 151645}));
  EXPECT_THAT(encoded.learned, ElementsAre(0, 1, 1));
  EXPECT_EQ(qwen3().encode("ab").size(), 1u);
}

TEST(Conversation, AGenerationPromptThatOpensTheReasoningHasNoLabel) {
  const auto encoder = encoder_of(
      "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' and loop.last %}<think>\n{{ "
      "m.thought }}"
      "</think>{% endif %}{{ m.content }}<|im_end|>\n{% endfor %}{% if add_generation_prompt "
      "%}<|im_start|>assistant\n<think>\n"
      "{% endif %}");
  EXPECT_THAT(
      answers(
          encoder,
          R"({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a", "thought": "x"},
                          {"role": "user", "content": "r"}, {"role": "assistant", "content": "b", "thought": "y"}]})"),
      ElementsAre("a<|im_end|>", "y</think>b<|im_end|>"));
}

TEST(Conversation, WithoutASpecialTokenTheTextThatClosesTheTurnIsItsEnd) {
  const auto encoder = encoder_of(
      "{% for m in messages %}{{ m.role }}: {{ m.content | trim }} END\n{% endfor %}"
      "{% if add_generation_prompt %}assistant: {% endif %}");
  EXPECT_THAT(
      answers(encoder, R"({"messages": [{"role": "assistant", "content": "hello "}, {"role": "user", "content": "q"},
                          {"role": "assistant", "content": " a"}, {"role": "user", "content": "r"}]})"),
      ElementsAre("hello END", "a END"));
  EXPECT_EQ(encoder.end_of_turn(), std::nullopt);
}

TEST(Conversation, GenerationBlocksOverrideTheDetectedAnswers) {
  const auto encoder = encoder_of(
      "{% for m in messages %}{{ m.role }}:{% if m.role == 'assistant' %}{% generation %}{{ m.content }}!{% "
      "endgeneration %}"
      "{% else %}{{ m.content }}{% endif %}\n{% endfor %}");
  EXPECT_THAT(
      answers(encoder, R"({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]})"),
      ElementsAre("a!"));
}

TEST(Conversation, AnAnswerOfWeightZeroHasNoLabels) {
  constexpr const char* kWeights = R"({"messages": [
    {"role": "user", "content": "a", "weight": null}, {"role": "assistant", "content": "b", "weight": 0},
    {"role": "user", "content": "c"}, {"role": "assistant", "content": "d", "weight": 1}]})";
  EXPECT_THAT(answers(qwen3_encoder(), kWeights), ElementsAre("<think>\n\n</think>\n\nd<|im_end|>"));
  const std::string marks = "{% generation %}{{ m.content }}{% endgeneration %}";
  EXPECT_THAT(
      answers(
          encoder_of("{% for m in messages %}{% if m.role == 'user' %}U{% else %}" + marks + "{% endif %}{% endfor %}"),
          kWeights),
      ElementsAre("d"));
  EXPECT_THAT(
      usage_error_of([&] { answers(encoder_of("{% for m in messages %}" + marks + "{% endfor %}"), kWeights); }),
      HasSubstr("\"weight\" needs one {% generation %} mark per answer, found 4 for 2 answers"));
}

TEST(Conversation, PromptsEndWhereTheAssistantBegins) {
  EXPECT_EQ(qwen3().decode(qwen3_encoder().prompt("Hi")), "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
  EXPECT_EQ(qwen3_encoder().end_of_turn(), 151645);
}

std::string refusal(const ConversationEncoder& encoder, const std::string& conversation) {
  return usage_error_of([&] { encoder.encode(ChatJson::parse(conversation)); });
}

TEST(Conversation, RefusesInvalidConversations) {
  const std::vector<std::pair<std::string, std::string>> cases{
      {"[]", "expected an object with \"messages\", found array"},
      {"{}", "the object has no key \"messages\""},
      {R"({"messages": "hi"})", "messages: expected a list, found string"},
      {R"({"messages": []})", "messages: the conversation is empty"},
      {R"({"messages": ["hi"]})", "messages[0]: expected an object with \"role\" and \"content\""},
      {R"({"messages": [{"role": "asistant", "content": "a"}]})",
       "messages[0].role: expected one of system, developer, user, assistant"},
      {R"({"messages": [{"role": "user", "content": ["a"]}]})", "messages[0].content: expected a string, found array"},
      {R"({"messages": [{"role": "user"}]})", "messages[0]: has neither \"content\" nor \"tool_calls\""},
      {R"({"messages": [{"role": "user", "content": "a"}]})", "no message has the role \"assistant\""},
      {R"({"messages": [{"role": "assistant", "content": "a", "weight": 0.5}]})",
       "messages[0].weight: expected 0 (no labels) or 1, found 0.5"},
      {R"({"messages": [{"role": "assistant", "content": "a"}], "tools": {}})",
       "tools: expected a list, found object"}};
  for (const auto& [conversation, expected] : cases) {
    EXPECT_THAT(refusal(qwen3_encoder(), conversation), HasSubstr(expected));
  }
}

TEST(Conversation, RefusesConversationsThatTheTemplateRefusesOrDoesNotRender) {
  constexpr const char* kPair =
      R"({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]})";
  EXPECT_THAT(
      refusal(
          encoder_of("\n{% if messages[0].role == 'user' %}{{ raise_exception('system first') }}{% endif %}"), kPair),
      HasSubstr("t.jinja:2: the template refuses this: system first"));
  EXPECT_THAT(
      refusal(encoder_of("{% for m in messages %}{{ m.role }}{% endfor %}"), kPair),
      HasSubstr("messages[1]: the template does not render the assistant's text"));
  // The answer renders in one way if it is short, and in another way if it is also the last message.
  const auto odd = encoder_of(
      "{% for m in messages %}{{ m.content }}{{ '1' if m.content | length < 2 and loop.last else '2' if m.content | "
      "length < 2 "
      "else '3' }}{% endfor %}");
  EXPECT_THAT(
      refusal(odd, R"({"messages": [{"role": "assistant", "content": "a"}, {"role": "user", "content": "long"}]})"),
      HasSubstr("messages[0]: the end of the answer cannot be determined"));
}

}  // namespace
}  // namespace lehr::data
