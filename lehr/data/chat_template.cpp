#include "lehr/data/chat_template.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <filesystem>

#include "lehr/base/error.h"
#include "lehr/config/json_shape.h"
#include "lehr/data/tokenizer_file.h"

namespace lehr::data {
namespace {

namespace fs = std::filesystem;
using jinja::Value;

ChatJson read_json(const fs::path& path) {
  try {
    const std::string text = read_whole_file(path);
    require_json_shape(text, path.string());
    return ChatJson::parse(text);
  } catch (const ChatJson::exception& error) {
    fail("{}: invalid JSON: {}", path.string(), error.what());
  }
}

/// Returns the text of a token: "<s>", or {"content": "<s>", ...}.
std::optional<std::string> token_text(const ChatJson& token) {
  if (token.is_string()) {
    return token.get<std::string>();
  }
  if (token.is_object() && token.contains("content") && token["content"].is_string()) {
    return token["content"].get<std::string>();
  }
  return std::nullopt;
}

/// Names such as "eos_token" and their texts.
using SpecialTokenTexts = std::vector<std::pair<std::string, std::string>>;

SpecialTokenTexts special_tokens_of(const fs::path& folder) {
  SpecialTokenTexts tokens;
  for (const char* file : {"tokenizer_config.json", "special_tokens_map.json"}) {
    const auto path = find_file(folder, file);
    const ChatJson config = path ? read_json(*path) : ChatJson::object();
    for (const char* key :
         {"bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"}) {
      const auto text = config.is_object() && config.contains(key) ? token_text(config[key]) : std::nullopt;
      const bool known =
          std::any_of(tokens.begin(), tokens.end(), [&](const auto& token) { return token.first == key; });
      if (text && !known) {
        tokens.emplace_back(key, *text);
      }
    }
  }
  return tokens;
}

struct Source {
  std::string name;
  std::string text;
  std::optional<std::string> tool_use;
};

/// Reads an entry "chat_template": the template itself, or a list of named templates, of which "default" and "tool_use"
/// are used.
std::optional<Source> source_in(const fs::path& path) {
  const ChatJson config = read_json(path);
  const std::string name = path.string() + ": chat_template";
  if (!config.is_object() || !config.contains("chat_template") || config["chat_template"].is_null()) {
    return std::nullopt;
  }
  const ChatJson& entry = config["chat_template"];
  if (entry.is_string()) {
    return Source{name, entry.get<std::string>(), std::nullopt};
  }
  require(entry.is_array(), "{}: expected a template, or a list of templates with names", name);
  std::optional<std::string> text, tool_use;
  for (const ChatJson& item : entry) {
    require(
        item.is_object() && item.contains("name") && item["name"].is_string() && item.contains("template") &&
            item["template"].is_string(),
        "{}: expected every item of the list to have a name and a template",
        name);
    if (item["name"] == "default") {
      text = item["template"].get<std::string>();
    } else if (item["name"] == "tool_use") {
      tool_use = item["template"].get<std::string>();
    }
  }
  if (!text) {
    fail("{}: the list has no template with the name \"default\"", name);
  }
  return Source{name, *text, tool_use};
}

std::optional<Source> find_source(const fs::path& folder) {
  if (const auto file = find_file(folder, "chat_template.jinja")) {
    return Source{file->string(), read_whole_file(*file), std::nullopt};
  }
  for (const char* name : {"chat_template.json", "tokenizer_config.json"}) {
    const auto file = find_file(folder, name);
    const auto source = file ? source_in(*file) : std::nullopt;
    if (source) {
      return source;
    }
  }
  return std::nullopt;
}

/// Returns the folder of a tokenizer's files: `tokenizer` itself, or the folder of a tokenizer.json; otherwise
/// `tokenizer`, which may be another file.
std::string folder_of(const std::string& tokenizer) {
  const fs::path path(tokenizer);
  if (!is_tokenizer_file(path) || fs::is_directory(path)) {
    return tokenizer;
  }
  return path.has_parent_path() ? path.parent_path().string() : ".";
}

/// Formats the time by strftime.
Value formatted_time(std::time_t now, const std::string& format) {
  std::tm parts{};
  ::gmtime_r(&now, &parts);
  std::array<char, 256> buffer{};
  const size_t size = format.empty() ? 0 : std::strftime(buffer.data(), buffer.size(), format.c_str(), &parts);
  return Value(std::string(buffer.data(), size));
}

}  // namespace

ChatTemplate::ChatTemplate(
    const std::string& source,
    std::string name,
    std::vector<std::pair<std::string, std::string>> special_tokens,
    const std::optional<std::string>& tool_use)
    : template_(source, name), special_tokens_(std::move(special_tokens)) {
  if (tool_use) {
    tool_use_.emplace(*tool_use, name + " (tool_use)");
  }
}

bool ChatTemplate::marks_generation() const {
  return template_.marks_generation() && (!tool_use_ || tool_use_->marks_generation());
}

ChatTemplate::Rendering ChatTemplate::render(const ChatJson& messages, const ChatOptions& options) const {
  const bool has_tools = options.tools != nullptr && !options.tools->is_null();
  const jinja::Template& chosen = has_tools && tool_use_ ? *tool_use_ : template_;
  jinja::Dict variables;
  for (const auto& [name, text] : special_tokens_) {
    variables.emplace_back(name, Value(text));
  }
  variables.emplace_back("strftime_now", Value::function([now = options.now](const jinja::Arguments& arguments) {
                           if (arguments.positional.size() != 1 || !arguments.named.empty()) {
                             jinja::refuse("strftime_now: expected a format");
                           }
                           return formatted_time(now, arguments.positional[0].as_string("strftime_now"));
                         }));
  try {
    variables.emplace_back("messages", Value::from_json(messages));
    variables.emplace_back("tools", has_tools ? Value::from_json(*options.tools) : Value::none());
    variables.emplace_back("documents", Value::none());
    variables.emplace_back("add_generation_prompt", Value(options.add_generation_prompt));
    if (options.variables != nullptr && options.variables->is_object()) {
      for (const auto& [name, value] : options.variables->items()) {
        jinja::assign(variables, name, Value::from_json(value));
      }
    }
  } catch (const jinja::Problem& problem) {
    fail("{}: {}", chosen.name(), problem.what());
  }
  return chosen.render(variables);
}

std::shared_ptr<const ChatTemplate> load_chat_template(
    const std::string& given, const std::string& tokenizer, const std::string& subject, const std::string& setting) {
  const std::string what = folder_of(given), folder = folder_of(tokenizer);
  auto tokens = fs::is_directory(folder) ? special_tokens_of(folder) : SpecialTokenTexts();
  if (what != "byte" && fs::is_directory(what)) {
    auto source = find_source(what);
    if (!source) {
      fail(
          "{}: {}: the folder has no chat template (chat_template.jinja, or \"chat_template\" in "
          "tokenizer_config.json); set {}",
          subject,
          what,
          setting);
    }
    if (tokens.empty()) {
      tokens = special_tokens_of(what);
    }
    return std::make_shared<const ChatTemplate>(source->text, source->name, std::move(tokens), source->tool_use);
  }
  require(what != "byte", "{}: the byte tokenizer has no chat template; set {} to a template file", subject, setting);
  require(fs::is_regular_file(what), "{}: {}: no such file or folder; expected a chat template", subject, what);
  require(
      what != folder, "{}: {}: is a tokenizer, not a chat template; set {} to a template file", subject, what, setting);
  return std::make_shared<const ChatTemplate>(read_whole_file(what), what, std::move(tokens));
}

bool has_chat_template(const std::string& tokenizer) {
  const std::string folder = folder_of(tokenizer);
  return fs::is_directory(folder) && find_source(folder).has_value();
}

}  // namespace lehr::data
