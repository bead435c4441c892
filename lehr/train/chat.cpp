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

Prompt make_prompt(
    const std::string& text,
    const data::Tokenizer& tokenizer,
    const std::shared_ptr<const data::ChatTemplate>& chat_template,
    std::vector<int64_t> eos_ids) {
  Prompt prompt{.ids = {}, .stop_ids = std::move(eos_ids)};
  if (chat_template == nullptr) {
    const auto ids = tokenizer.encode(text);
    prompt.ids.assign(ids.begin(), ids.end());
    return prompt;
  }
  const data::ConversationEncoder encoder(chat_template, tokenizer);
  const auto ids = encoder.prompt(text);
  prompt.ids.assign(ids.begin(), ids.end());
  if (const auto end = encoder.end_of_turn()) {
    if (std::find(prompt.stop_ids.begin(), prompt.stop_ids.end(), *end) == prompt.stop_ids.end()) {
      prompt.stop_ids.push_back(*end);
    }
  }
  return prompt;
}

}  // namespace lehr::train
