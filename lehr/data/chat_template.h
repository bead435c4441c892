// Chat templates of Hugging Face folders, which render a conversation as text.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <ctime>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lehr/data/jinja/template.h"

namespace lehr::data {

/// JSON objects in the order in which they were written, as templates may print them.
using ChatJson = nlohmann::ordered_json;

/// Inputs of a template besides the messages.
struct ChatOptions {
  /// Append the prompt after which the assistant answers.
  bool add_generation_prompt = false;
  /// List of function descriptions; null: none.
  const ChatJson* tools = nullptr;
  /// Further variables by name, such as enable_thinking; an object, or null.
  const ChatJson* variables = nullptr;
  /// The time of strftime_now(), in seconds since 1970, in UTC. The default is a fixed day, so that data does not
  /// change from day to day.
  std::time_t now = 1721952000;  // 26 July 2024, which is Llama's own default
};

/// A template and the special tokens that it may use. Immutable; several threads may render concurrently.
class ChatTemplate {
 public:
  using Rendering = jinja::Template::Rendering;

  /// `special_tokens`: names such as "eos_token" and their texts. `tool_use`: a separate template for conversations
  /// with tools, if the folder has one.
  ChatTemplate(
      const std::string& source,
      std::string name,
      std::vector<std::pair<std::string, std::string>> special_tokens = {},
      const std::optional<std::string>& tool_use = std::nullopt);

  /// Renders `messages`, a list of objects with role and content. The result equals that of transformers'
  /// apply_chat_template. Throws a usage error that names the template's line.
  Rendering render(const ChatJson& messages, const ChatOptions& options = {}) const;

  /// Returns whether the template itself marks the assistant's text with {% generation %}.
  bool marks_generation() const;

 private:
  jinja::Template template_;
  std::optional<jinja::Template> tool_use_;
  std::vector<std::pair<std::string, std::string>> special_tokens_;
};

/// Loads the template of `what`: a folder (chat_template.jinja, else chat_template.json, else the entry "chat_template"
/// of tokenizer_config.json, each also as .gz), or a template file (.jinja). The special tokens are those of
/// `tokenizer`, a folder; "" and "byte" have none. If it has none, they are those of the folder `what`. Both may also
/// be the tokenizer.json (or tokenizer.json.gz) in their folder. If there is no template, throws a usage error that
/// names `subject`, the config key or command that uses `what`, and `setting`, the key or option that takes a template.
std::shared_ptr<const ChatTemplate> load_chat_template(
    const std::string& what,
    const std::string& tokenizer = "",
    const std::string& subject = "chat template",
    const std::string& setting = "tokenizer.chat_template");

/// Returns whether `tokenizer`, a folder or the tokenizer.json in it, has a template that load_chat_template would
/// find.
bool has_chat_template(const std::string& tokenizer);

}  // namespace lehr::data
