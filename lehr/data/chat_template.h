// Chat templates: what Hugging Face folders say about writing a conversation as text.
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

/// JSON objects in the order in which they were written, which templates show.
using ChatJson = nlohmann::ordered_json;

/// What a template is rendered with, beside the messages.
struct ChatOptions {
  /// Ends with what makes the assistant speak.
  bool add_generation_prompt = false;
  /// Descriptions of functions, a list; null: none.
  const ChatJson* tools = nullptr;
  /// Further variables by name, as enable_thinking; an object, or null.
  const ChatJson* variables = nullptr;
  /// What strftime_now() tells, in seconds since 1970, in UTC. The default is a fixed day, so that data does not change
  /// from one day to the next.
  std::time_t now = 1721952000;  // 26 July 2024, which is Llama's own default
};

/// A template and the special tokens that it may name. Immutable; may render on many threads at once.
class ChatTemplate {
 public:
  using Rendering = jinja::Template::Rendering;

  /// `special_tokens`: names as "eos_token" and their texts. `tool_use`: the template for conversations with tools,
  /// where a folder has one of its own.
  ChatTemplate(
      const std::string& source,
      std::string name,
      std::vector<std::pair<std::string, std::string>> special_tokens = {},
      const std::optional<std::string>& tool_use = std::nullopt);

  /// `messages`: a list of objects with role and content. Gives what transformers' apply_chat_template gives. Throws a
  /// usage error that names the template's line.
  Rendering render(const ChatJson& messages, const ChatOptions& options = {}) const;

  /// Whether the template itself marks, by {% generation %}, what the assistant says.
  bool marks_generation() const;

 private:
  jinja::Template template_;
  std::optional<jinja::Template> tool_use_;
  std::vector<std::pair<std::string, std::string>> special_tokens_;
};

/// Reads the template of `what`: a folder (chat_template.jinja, else chat_template.json, else the entry "chat_template"
/// of tokenizer_config.json, each packed as .gz or not), or a file that holds a template (.jinja). `tokenizer` names
/// the tokenizer whose folder gives the special tokens of a template file; "" and "byte" give none. Throws a usage
/// error that names `subject`, the key that `what` comes from, when there is none.
std::shared_ptr<const ChatTemplate> load_chat_template(
    const std::string& what, const std::string& tokenizer = "", const std::string& subject = "chat template");

/// Whether `folder` has a template that load_chat_template would find.
bool has_chat_template(const std::string& folder);

}  // namespace lehr::data
