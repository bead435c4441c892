#include "lehr/train/chat.h"

#include <algorithm>
#include <filesystem>

#include "lehr/base/error.h"
#include "lehr/data/conversation.h"
#include "lehr/data/tokenizer_file.h"

namespace lehr::train {

const std::string& chat_template_file(const TrainConfig& config) {
  const std::string& file = config.tokenizer.chat_template;
  require(
      !std::filesystem::is_directory(file),
      "tokenizer.chat_template: {} is a folder, expected a file with a chat template (.jinja), which is saved with the "
      "model",
      file);
  require(
      !data::is_tokenizer_file(file),
      "tokenizer.chat_template: {} is a tokenizer, expected a file with a chat template; name the tokenizer in "
      "tokenizer.path",
      file);
  return file;
}

std::shared_ptr<const data::ChatTemplate> chat_template_of(const TrainConfig& config) {
  const bool own = !config.tokenizer.path.empty();
  const std::string& folder = own ? config.tokenizer.path : config.model.hf_assets_path;
  if (const std::string& file = chat_template_file(config); !file.empty()) {
    return data::load_chat_template(file, folder, "tokenizer.chat_template");
  }
  require(!folder.empty(), "tokenizer.chat_template: expected a file with a chat template, found nothing");
  return data::load_chat_template(folder, folder, own ? "tokenizer.path" : "model.hf_assets_path");
}

std::vector<int64_t> stop_ids_of(
    const data::Tokenizer& tokenizer,
    const std::shared_ptr<const data::ChatTemplate>& chat_template,
    std::vector<int64_t> eos_ids) {
  const auto end = data::ConversationEncoder(chat_template, tokenizer).end_of_turn();
  if (end && std::find(eos_ids.begin(), eos_ids.end(), *end) == eos_ids.end()) {
    eos_ids.push_back(*end);
  }
  return eos_ids;
}

Prompt make_prompt(
    const std::string& text,
    const data::Tokenizer& tokenizer,
    const std::shared_ptr<const data::ChatTemplate>& chat_template,
    std::vector<int64_t> eos_ids) {
  const auto ids =
      chat_template ? data::ConversationEncoder(chat_template, tokenizer).prompt(text) : tokenizer.encode(text);
  Prompt prompt;
  if (!chat_template) {  // templates have the special tokens that they need
    const auto before = tokenizer.special_tokens().before;
    prompt.ids.assign(before.begin(), before.end());
  }
  prompt.ids.insert(prompt.ids.end(), ids.begin(), ids.end());
  prompt.stop_ids = chat_template ? stop_ids_of(tokenizer, chat_template, std::move(eos_ids)) : std::move(eos_ids);
  return prompt;
}

}  // namespace lehr::train
