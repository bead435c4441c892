#include "lehr/data/conversation.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <string_view>

#include "lehr/base/error.h"
#include "lehr/data/jinja/text.h"

namespace lehr::data {
namespace {

constexpr std::array kRoles{"system", "developer", "user", "assistant", "tool", "function", "ipython", "observation"};

bool is_assistant(const ChatJson& message) {
  return message["role"] == "assistant";
}

bool is_missing(const ChatJson& object, const char* key) {
  return !object.contains(key) || object[key].is_null();
}

std::string type_of(const ChatJson& object, const char* key) {
  return is_missing(object, key) ? "nothing" : object[key].type_name();
}

/// Checks the assumptions of templates, as many of them silently skip unknown content.
void check(const ChatJson& conversation) {
  require(conversation.is_object(), "expected an object with \"messages\", found {}", conversation.type_name());
  require(!is_missing(conversation, "messages"), "the object has no key \"messages\"");
  const ChatJson& messages = conversation["messages"];
  require(messages.is_array(), "messages: expected a list, found {}", messages.type_name());
  require(!messages.empty(), "messages: the conversation is empty");
  for (size_t i = 0; i < messages.size(); ++i) {
    const ChatJson& message = messages[i];
    require(
        message.is_object() && message.contains("role") && message["role"].is_string(),
        "messages[{}]: expected an object with \"role\" and \"content\"",
        i);
    const auto role = message["role"].get<std::string>();
    require(
        std::find(kRoles.begin(), kRoles.end(), role) != kRoles.end(),
        "messages[{}].role: expected one of {}, found \"{}\"",
        i,
        fmt::join(kRoles, ", "),
        role);
    require(
        is_missing(message, "content") || message["content"].is_string(),
        "messages[{}].content: expected a string, found {}",
        i,
        type_of(message, "content"));
    require(
        is_missing(message, "weight") || message["weight"] == 0 || message["weight"] == 1,
        "messages[{}].weight: expected 0 (no labels) or 1, found {}",
        i,
        message.contains("weight") ? message["weight"].dump() : "");
    require(
        !is_missing(message, "content") || !is_missing(message, "tool_calls"),
        "messages[{}]: has neither \"content\" nor \"tool_calls\"",
        i);
  }
  require(
      std::any_of(messages.begin(), messages.end(), is_assistant),
      "messages: no message has the role \"assistant\", so there is no answer to learn");
  require(
      is_missing(conversation, "tools") || conversation["tools"].is_array(),
      "tools: expected a list, found {}",
      type_of(conversation, "tools"));
  require(
      is_missing(conversation, "chat_template_kwargs") || conversation["chat_template_kwargs"].is_object(),
      "chat_template_kwargs: expected an object, found {}",
      type_of(conversation, "chat_template_kwargs"));
}

/// Returns whether the answer has labels: OpenAI's "weight" of a message, 0 or 1.
bool has_labels(const ChatJson& message) {
  return is_missing(message, "weight") || message["weight"] != 0;
}

/// Returns those of the answers marked by {% generation %} that have labels.
std::vector<std::pair<size_t, size_t>> with_labels(
    const ChatJson& messages, const std::vector<std::pair<size_t, size_t>>& answers) {
  std::vector<bool> labels;
  for (const ChatJson& message : messages) {
    if (is_assistant(message)) {
      labels.push_back(has_labels(message));
    }
  }
  if (std::find(labels.begin(), labels.end(), false) == labels.end()) {
    return answers;
  }
  require(
      answers.size() == labels.size(),
      "messages: \"weight\" needs one {{% generation %}} mark per answer, found {} for {} answers",
      answers.size(),
      labels.size());
  std::vector<std::pair<size_t, size_t>> kept;
  for (size_t i = 0; i < labels.size(); ++i) {
    if (labels[i]) {
      kept.push_back(answers[i]);
    }
  }
  return kept;
}

ChatOptions options_of(const ChatJson& conversation) {
  ChatOptions options;
  options.tools = is_missing(conversation, "tools") || conversation["tools"].empty() ? nullptr : &conversation["tools"];
  options.variables =
      is_missing(conversation, "chat_template_kwargs") ? nullptr : &conversation["chat_template_kwargs"];
  return options;
}

ChatJson first_messages(const ChatJson& messages, size_t count) {
  return ChatJson(messages.begin(), messages.begin() + static_cast<std::ptrdiff_t>(count));
}

/// Returns a word that does not occur in `text`.
std::string unused_word(const std::string& text) {
  std::string word = "Qx7Zk";
  while (text.find(word) != std::string::npos) {
    word += "7Zk";
  }
  return word;
}

size_t common_prefix(std::string_view a, std::string_view b) {
  return static_cast<size_t>(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin());
}

}  // namespace

ConversationEncoder::ConversationEncoder(std::shared_ptr<const ChatTemplate> chat_template, const Tokenizer& tokenizer)
    : chat_template_(std::move(chat_template)), tokenizer_(tokenizer) {}

/// Returns the special token that `text` begins with; "" if it begins with none.
std::string ConversationEncoder::special_text(const std::string& text) const {
  const auto ids = tokenizer_.encode(std::string_view(text).substr(0, 256));
  if (ids.empty()) {
    return "";
  }
  const std::array first{ids.front()};
  const std::string token = tokenizer_.decode(first);
  return tokenizer_.decode(first, /*skip_special=*/true).empty() && text.starts_with(token) ? token : "";
}

/// Returns `end` advanced past the end of the turn: a special token, or, if the template uses none, all of `closing`
/// (the text that closes the turn) except for trailing white space.
size_t ConversationEncoder::end_with_token(const std::string& text, size_t end, const std::string& closing) const {
  const std::string after = text.substr(end);
  const std::string token = special_text(after);
  if (!token.empty()) {
    return end + token.size();
  }
  const size_t size = common_prefix(after, closing);
  return end + jinja::strip_right(std::string_view(after).substr(0, size)).size();
}

/// Finds message `index` in `text`, the rendering of all messages. Templates may render a turn differently when others
/// follow it (Qwen3 then drops its thoughts), so its end is not that of the rendering of the messages up to it.
/// Instead, the message is replaced by a unique word: the text that follows the word also follows the answer.
std::pair<size_t, size_t> ConversationEncoder::answer(
    const ChatJson& messages, size_t index, const std::string& text, const ChatOptions& options) const {
  const std::string word = unused_word(text);
  ChatJson changed = messages;
  changed[index] = {{"role", "assistant"}, {"content", word}};
  ChatOptions prompt = options;
  prompt.add_generation_prompt = true;
  std::string marked;
  try {
    marked = chat_template_->render(changed, options).text;
  } catch (const Error&) {
    // Some templates refuse a tool's answer without the call that it answers. Then the end is that of the messages up
    // to this one.
    const std::string opening = chat_template_->render(first_messages(messages, index), prompt).text;
    const std::string so_far = chat_template_->render(first_messages(messages, index + 1), options).text;
    if (!messages[index].contains("tool_calls") || !text.starts_with(so_far) || !so_far.starts_with(opening)) {
      throw;
    }
    return {opening.size(), jinja::strip_right(so_far).size()};
  }
  const size_t place = marked.find(word);
  require(place != std::string::npos, "messages[{}]: the template does not render the assistant's text", index);
  const std::string tail = marked.substr(place + word.size());

  size_t end = 0;
  if (text.ends_with(tail)) {
    const std::string alone = chat_template_->render(first_messages(changed, index + 1), options).text;
    const size_t begin_of_closing = std::min(alone.find(word), alone.size() - word.size()) + word.size();
    end = end_with_token(text, text.size() - tail.size(), alone.substr(begin_of_closing));
  } else {
    const std::string so_far = chat_template_->render(first_messages(messages, index + 1), options).text;
    require(
        text.starts_with(so_far),
        "messages[{}]: the end of the answer cannot be determined, since the template renders it differently from "
        "plain answers, and differently again when nothing follows; mark answers in the template with {{% generation "
        "%}}",
        index);
    end = jinja::strip_right(so_far).size();
  }

  const std::string opening = index == 0 ? "" : chat_template_->render(first_messages(messages, index), prompt).text;
  size_t begin = opening.size();
  if (index == 0 || begin > end || !text.starts_with(opening)) {
    begin = place;  // after the header of the message
    require(
        begin <= end && std::string_view(text).substr(0, begin) == std::string_view(marked).substr(0, begin),
        "messages[{}]: the start of the answer cannot be determined, since the template renders the text before it "
        "differently in a prompt; mark answers in the template with {{% generation %}}",
        index);
  }
  return {begin, end};
}

ConversationEncoder::Marked ConversationEncoder::mark(const ChatJson& conversation) const {
  check(conversation);
  const ChatJson& messages = conversation["messages"];
  const ChatOptions options = options_of(conversation);
  auto rendering = chat_template_->render(messages, options);
  Marked marked{std::move(rendering.text), {}};
  if (chat_template_->marks_generation()) {
    marked.answers = with_labels(messages, rendering.generated);
  } else {
    for (size_t i = 0; i < messages.size(); ++i) {
      if (is_assistant(messages[i]) && has_labels(messages[i])) {
        marked.answers.push_back(answer(messages, i, marked.text, options));
      }
    }
  }
  size_t last = 0;
  for (const auto& [begin, end] : marked.answers) {
    require(last <= begin && begin <= end, "messages: the template does not render the answers in their order");
    last = end;
  }
  return marked;
}

EncodedConversation ConversationEncoder::encode(const ChatJson& conversation) const {
  const Marked marked = mark(conversation);
  std::vector<size_t> borders;
  for (const auto& [begin, end] : marked.answers) {
    borders.insert(borders.end(), {begin, end});
  }
  EncodedConversation encoded;
  uint8_t learned = 0;
  for (const std::vector<int32_t>& ids : tokenizer_.encode_parts(marked.text, borders)) {
    encoded.ids.insert(encoded.ids.end(), ids.begin(), ids.end());
    encoded.learned.resize(encoded.ids.size(), learned);
    learned = 1 - learned;  // every second part is an answer
  }
  return encoded;
}

std::vector<int32_t> ConversationEncoder::prompt(const std::string& text) const {
  const ChatJson messages = ChatJson::array({{{"role", "user"}, {"content", text}}});
  ChatOptions options;
  options.add_generation_prompt = true;
  return tokenizer_.encode(chat_template_->render(messages, options).text);
}

std::optional<int32_t> ConversationEncoder::end_of_turn() const {
  const ChatJson messages =
      ChatJson::array({{{"role", "user"}, {"content", "a"}}, {{"role", "assistant"}, {"content", "b"}}});
  Marked marked;
  try {
    marked = mark({{"messages", messages}});
  } catch (const Error&) {
    return std::nullopt;  // the template accepts only other conversations
  }
  if (marked.answers.empty()) {
    return std::nullopt;
  }
  const auto [begin, end] = marked.answers.back();
  const auto ids = tokenizer_.encode(std::string_view(marked.text).substr(begin, end - begin));
  const std::array last{ids.empty() ? 0 : ids.back()};
  const bool special = !ids.empty() && tokenizer_.decode(last, /*skip_special=*/true).empty();
  return special && !tokenizer_.decode(last).empty() ? std::optional(last.front()) : std::nullopt;
}

}  // namespace lehr::data
