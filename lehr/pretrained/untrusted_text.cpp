#include "lehr/pretrained/untrusted_text.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <functional>
#include <string_view>

#include "lehr/base/error.h"
#include "lehr/base/file.h"
#include "lehr/base/open_file.h"
#include "lehr/config/json.h"
#include "lehr/data/chat_template.h"
#include "lehr/data/tokenizer.h"
#include "lehr/peft/adapter_config.h"

namespace lehr::pretrained {

namespace {
namespace fs = std::filesystem;

void for_each_entry(const Node& node, const std::function<void(const std::string&, const Node&)>& see) {
  if (node.is_list()) {
    for (const Node& item : node.items()) {
      for_each_entry(item, see);
    }
  } else if (node.is_table()) {
    for (const auto& [key, value] : node.entries()) {
      see(key, value);
      for_each_entry(value, see);
    }
  }
}

// Whether a limit was hit, and not only something that Lehr lacks.
bool is_limit(std::string_view message) {
  static constexpr std::array kSigns{
      "too much work",
      "match limit",
      "too many steps",
      "nested",
      "more than",
      "at most",
      "too large",
      "far above",
      "too deep",
      "out of its folder",
      "expands to"};
  return std::any_of(
      kSigns.begin(), kSigns.end(), [&](const char* sign) { return message.find(sign) != std::string_view::npos; });
}

class Problems {
 public:
  template <class Read>
  void of(const fs::path& folder, const std::string& file, const Read& read) {
    std::error_code error;
    if (!fs::exists(folder / file, error)) {
      return;
    }
    try {
      read();
    } catch (const Error& problem) {
      const std::string what = problem.what();
      all.push_back({.danger = is_limit(what), .file = file, .what = "Lehr refuses it: " + what});
    }
  }

  std::vector<ModelProblem> all;
};

// Runs that make patterns backtrack.
void encode_hard_texts(const data::Tokenizer& tokenizer) {
  constexpr size_t kLength = 4000;
  for (const char* piece : {"a", " ", "\n", "1", "'s", "a ", "\xC3\xA9", "!", "aB"}) {
    std::string text;
    while (text.size() < kLength) {
      text += piece;
    }
    tokenizer.encode(text + "\x01");
  }
}

void render_two_turns(const fs::path& folder) {
  const auto chat = data::load_chat_template(folder.string());
  const auto messages = data::ChatJson::parse(
      R"([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}])");
  chat->render(messages, {.add_generation_prompt = true});
}
}  // namespace

std::vector<std::string> code_in_json(const fs::path& file) {
  std::vector<std::string> found;
  const auto tell = [&](const std::string& key, const Node& value, const char* what) {
    found.push_back(fmt::format("{}: {}; Lehr ignores it ({})", key, what, value.describe()));
  };
  for_each_entry(parse_json_file(file), [&](const std::string& key, const Node& value) {
    const bool names_something = value.is_string() || value.is_list() || value.is_table();
    if (key == "auto_map" || key == "custom_pipelines" || key == "custom_object_scope" || key == "_target_") {
      tell(key, value, "other programs load Python code by it");
    } else if (key == "trust_remote_code") {
      tell(key, value, "asks other programs to run the folder's Python code");
    } else if (
        (key.find("attn_implementation") != std::string::npos ||
         key.find("experts_implementation") != std::string::npos) &&
        names_something && (!value.is_string() || value.as_string().find('/') != std::string::npos)) {
      tell(key, value, "other programs download code by it, even without trust_remote_code");
    } else if (key == "chat_template" && value.is_string()) {
      for (const std::string& risk : risks_of_template_text(value.as_string())) {
        found.push_back("chat_template: " + risk);
      }
    }
  });
  return found;
}

std::vector<std::string> risks_of_template(const fs::path& file) {
  constexpr int64_t kLongest = 1 << 20;
  const OpenFile size(file);
  require(size.size() <= kLongest, "the template has {} bytes, at most {} are allowed", size.size(), kLongest);
  return risks_of_template_text(read_file(file));
}

std::vector<std::string> risks_of_template_text(const std::string& text) {
  std::vector<std::string> found;
  for (const char* word :
       {"__class__",
        "__globals__",
        "__subclasses__",
        "__builtins__",
        "__import__",
        "__init__",
        "__mro__",
        "popen",
        "os.system",
        "subprocess",
        "importlib",
        "lipsum",
        "cycler.",
        "|attr(",
        "| attr("}) {
    if (text.find(word) != std::string::npos) {
      found.push_back(fmt::format(
          "the template names {}, a way from a template to Python's objects in other programs; Lehr's templates have "
          "no such "
          "objects",
          word));
    }
  }
  return found;
}

std::vector<ModelProblem> problems_as_model(const fs::path& folder, const descriptor::ModelFamilies& families) {
  Problems problems;
  problems.of(folder, "config.json", [&] { families.from_hf_folder(folder); });
  problems.of(folder, peft::kAdapterConfigFile, [&] { peft::read_adapter_config(folder); });
  for (const char* file : {"tokenizer.json", "tokenizer.json.gz"}) {
    problems.of(folder, file, [&] { encode_hard_texts(*data::load_tokenizer(folder.string())); });
  }
  for (const char* file : {"chat_template.jinja", "chat_template.json", "tokenizer_config.json"}) {
    problems.of(folder, file, [&] {
      if (data::has_chat_template(folder.string())) {
        render_two_turns(folder);
      }
    });
  }
  return std::move(problems.all);
}

}  // namespace lehr::pretrained
