#include "lehr/train/chat.h"

#include <algorithm>

#include "lehr/base/error.h"
#include "lehr/data/conversation.h"

namespace lehr::train {

std::shared_ptr<const data::ChatTemplate> chat_template_of(const TrainConfig& config) {
  const bool own = !config.tokenizer.path.empty();
  const std::string& folder = own ? config.tokenizer.path : config.model.hf_assets_path;
  if (!config.tokenizer.chat_template.empty()) {
    return data::load_chat_template(config.tokenizer.chat_template, folder, "tokenizer.chat_template");
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
