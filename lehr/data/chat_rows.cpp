#include "lehr/data/chat_rows.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <map>

#include "lehr/base/error.h"
#include "lehr/config/json_shape.h"
#include "lehr/data/byte_source.h"
#include "lehr/data/corpus.h"
#include "lehr/data/tokenizer_file.h"

namespace lehr::data {
namespace {

constexpr std::string_view kBlank = " \t\r\n";
constexpr const char* kShareGptKey = "conversations";

/// Returns whether the first non-blank character is a '['.
bool is_list(const std::filesystem::path& path) {
  if (is_table(path)) {
    return false;
  }
  LineReader lines(open_bytes(path));
  for (std::string_view line; lines.next(line);) {
    line = without_byte_order_mark(line, lines.line_number());
    const size_t first = line.find_first_not_of(kBlank);
    if (first != std::string_view::npos) {
      return line[first] == '[';
    }
  }
  return false;
}

RowKeys keys_of(const DatasetConfig& columns) {
  RowKeys keys{.optional = {"tools", "chat_template_kwargs"}};
  if (columns.prompt_key.empty()) {
    keys.required = {columns.messages_key};
    keys.optional.emplace_back("system");
  } else {
    keys.required = {columns.prompt_key, columns.answer_key};
    if (!columns.input_key.empty()) {
      keys.optional.push_back(columns.input_key);
    }
  }
  return keys;
}

}  // namespace

/// The objects of one file, one after another.
class ChatRowReader::File {
 public:
  virtual ~File() = default;
  virtual std::optional<ChatRow> next() = 0;

  class Lines;
  class OneList;
};

class ChatRowReader::File::Lines : public File {
 public:
  Lines(const std::filesystem::path& path, const RowKeys& keys) : name_(path.string()), lines_(open_rows(path, keys)) {}

  std::optional<ChatRow> next() override {
    for (std::string_view line; lines_.next(line);) {
      if (lines_.line_number() == 1 && line.starts_with(kByteOrderMark)) {
        line.remove_prefix(kByteOrderMark.size());
      }
      if (line.find_first_not_of(kBlank) != std::string_view::npos) {
        require_utf8(line, name_, lines_.line_number());
        return ChatRow{.text = std::string(line), .file = name_, .line = lines_.line_number()};
      }
    }
    return std::nullopt;
  }

 private:
  std::string name_;
  LineReader lines_;
};

/// Splits a list at the commas between its elements, so that each has a line number and is parsed separately.
class ChatRowReader::File::OneList : public File {
 public:
  explicit OneList(const std::filesystem::path& path) : name_(path.string()), text_(read_whole_file(path)) {
    require_utf8(text_, name_, 1);
    step(text_.find('[') + 1);
  }

  std::optional<ChatRow> next() override {
    while (position_ < text_.size() && kBlank.find(text_[position_]) != std::string_view::npos) {
      step(1);
    }
    if (!done_ && first_ && position_ < text_.size() && text_[position_] == ']') {
      step(1);
      finish();
    }
    if (done_) {
      return std::nullopt;
    }
    const int64_t line = line_;
    const size_t end = element_end();
    require(end < text_.size(), "{}:{}: the list is not terminated", name_, line);
    ChatRow row{.text = text_.substr(position_, end - position_), .file = name_, .line = line};
    const bool last = text_[end] == ']';
    first_ = false;
    step(end + 1 - position_);
    if (last) {
      finish();
    }
    return row;
  }

 private:
  /// What follows the list would otherwise be left out without a word: a second list in a concatenated file, say.
  void finish() {
    done_ = true;
    const size_t rest = text_.find_first_not_of(kBlank, position_);
    if (rest != std::string::npos) {
      step(rest - position_);
      fail("{}:{}: the list ends before this; a file holds one list, or JSON lines", name_, line_);
    }
  }

  void step(size_t count) {
    const auto begin = text_.begin() + static_cast<std::ptrdiff_t>(position_);
    line_ += std::count(begin, begin + static_cast<std::ptrdiff_t>(count), '\n');
    position_ += count;
  }

  /// Returns the position of the comma or bracket after the current element; the text's end if there is none.
  size_t element_end() const {
    int64_t depth = 0;
    bool in_string = false;
    for (size_t i = position_; i < text_.size(); ++i) {
      const char c = text_[i];
      if (in_string) {
        i += c == '\\' ? 1 : 0;
        in_string = c != '"';
      } else if (c == '"') {
        in_string = true;
      } else if (depth == 0 && (c == ',' || c == ']')) {
        return i;
      } else {
        depth += c == '{' || c == '[' ? 1 : c == '}' || c == ']' ? -1 : 0;
      }
    }
    return text_.size();
  }

  std::string name_;
  std::string text_;
  size_t position_ = 0;
  int64_t line_ = 1;
  bool first_ = true;
  bool done_ = false;
};

ChatRowReader::ChatRowReader(const DatasetConfig& columns)
    : keys_(keys_of(columns)), files_(list_files({.path = columns.path, .kind = TextKind::rows})) {}

ChatRowReader::~ChatRowReader() = default;

std::optional<ChatRow> ChatRowReader::next() {
  for (;;) {
    if (file_ == nullptr) {
      if (next_file_ == files_.size()) {
        return std::nullopt;
      }
      const auto& path = files_[next_file_++];
      if (is_list(path)) {
        file_ = std::make_unique<File::OneList>(path);
      } else {
        file_ = std::make_unique<File::Lines>(path, keys_);
      }
    }
    if (auto row = file_->next()) {
      lone_surrogates_.replace(row->text, row->file, row->line);
      return row;
    }
    file_ = nullptr;
  }
}

namespace {

std::string text_of(const ChatJson& row, const std::string& key, const char* named_by) {
  require(row.contains(key), "the object has no key \"{}\", which {} names", key, named_by);
  require(row[key].is_string(), "\"{}\": expected a string, found {}", key, row[key].type_name());
  return row[key].get<std::string>();
}

/// Sets the content of messages that only call tools to null, because a table cannot tell null from a missing key, and
/// templates test whether content is none.
void set_content(ChatJson& messages) {
  if (!messages.is_array()) {
    return;
  }
  for (ChatJson& message : messages) {
    if (message.is_object() && message.contains("tool_calls") && !message["tool_calls"].is_null() &&
        !message.contains("content")) {
      message["content"] = nullptr;
    }
  }
}

/// Returns the role that ShareGPT's "from" stands for.
std::string role_of(const ChatJson& from, size_t index) {
  static const std::map<std::string, std::string> kShareGptRoles{
      {"human", "user"},
      {"gpt", "assistant"},
      {"user", "user"},
      {"assistant", "assistant"},
      {"system", "system"},
      {"tool", "tool"},
      {"observation", "observation"}};
  const std::string name = from.is_string() ? from.get<std::string>() : from.dump();
  const auto role = kShareGptRoles.find(name);
  require(
      role != kShareGptRoles.end(),
      "messages[{}].from: expected human or user, gpt or assistant, system, tool or observation, found \"{}\"; write calls of tools as "
      "\"tool_calls\" of a message with \"role\": \"assistant\"",
      index,
      name);
  return role->second;
}

/// Renames the keys and roles of ShareGPT's messages, {"from": "human", "value": "..."}, and makes a string under
/// `system`, beside the messages, the first message, unless that is equal.
void rename_sharegpt(ChatJson& messages, const ChatJson& system) {
  for (size_t i = 0; messages.is_array() && i < messages.size(); ++i) {
    ChatJson& message = messages[i];
    if (message.is_object() && message.contains("from") && !message.contains("role")) {
      message["role"] = role_of(message["from"], i);
      if (message.contains("value")) {
        ChatJson value = std::move(message["value"]);  // a new key moves the others
        message["content"] = std::move(value);
      }
      message.erase("from");
      message.erase("value");
    }
  }
  if (!messages.is_array() || messages.empty() || !system.is_string() || system == "") {
    return;
  }
  if (messages[0].is_object() && messages[0].value("role", ChatJson()) == "system") {
    require(
        messages[0].value("content", ChatJson()) == system,
        "system: there is another system message in messages[0]; remove one of the two");
    return;
  }
  messages.insert(messages.begin(), ChatJson{{"role", "system"}, {"content", system}});
}

ChatJson parse(const std::string& text) {
  require_json_shape(text, "the row");
  try {
    return ChatJson::parse(text);
  } catch (const ChatJson::exception& error) {
    std::string what = error.what();
    const size_t begin = what.find(": ", what.find("column"));
    fail("not valid JSON: {}", begin == std::string::npos ? what : what.substr(begin + 2));
  }
}

}  // namespace

ChatJson conversation_of(const ChatRow& row, const DatasetConfig& columns) {
  ChatJson object = parse(row.text);
  require(object.is_object(), "expected a JSON object, found {}", object.type_name());
  ChatJson conversation = ChatJson::object();
  for (const char* key : {"tools", "chat_template_kwargs"}) {
    if (object.contains(key)) {
      conversation[key] = std::move(object[key]);
    }
  }
  if (columns.prompt_key.empty()) {
    const bool sharegpt = columns.messages_key == DatasetConfig().messages_key &&
                          !object.contains(columns.messages_key) && object.contains(kShareGptKey);
    const std::string key = sharegpt ? kShareGptKey : columns.messages_key;
    require(
        object.contains(key),
        "the object has no key \"{}\". messages_key names the key of the messages, prompt_key and answer_key those of "
        "a question and its answer",
        key);
    conversation["messages"] = std::move(object[key]);
    rename_sharegpt(conversation["messages"], object.value("system", ChatJson()));
    set_content(conversation["messages"]);
    return conversation;
  }
  std::string prompt = text_of(object, columns.prompt_key, "prompt_key");
  if (!columns.input_key.empty() && object.contains(columns.input_key) && !object[columns.input_key].is_null()) {
    const std::string input = text_of(object, columns.input_key, "input_key");
    prompt += input.empty() ? "" : "\n\n" + input;
  }
  ChatJson messages = ChatJson::array();
  messages.push_back({{"role", "user"}, {"content", prompt}});
  messages.push_back({{"role", "assistant"}, {"content", text_of(object, columns.answer_key, "answer_key")}});
  conversation["messages"] = std::move(messages);
  return conversation;
}

}  // namespace lehr::data
