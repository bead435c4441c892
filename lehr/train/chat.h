// Chat templates of a run, and prompts for generation.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lehr/data/chat_template.h"
#include "lehr/data/tokenizer.h"
#include "lehr/train/config.h"

namespace lehr::train {

/// Returns tokenizer.chat_template, "" if it is unset. Throws a usage error that names the key if it is a folder.
const std::string& chat_template_file(const TrainConfig& config);

/// Returns the template of the config: tokenizer.chat_template, or that of the tokenizer's folder, with the tokenizer's
/// special tokens. Throws a usage error that names the key if there is none.
std::shared_ptr<const data::ChatTemplate> chat_template_of(const TrainConfig& config);

/// Returns `eos_ids` and the token that ends a turn in the template's conversations.
std::vector<int64_t> stop_ids_of(
    const data::Tokenizer& tokenizer,
    const std::shared_ptr<const data::ChatTemplate>& chat_template,
    std::vector<int64_t> eos_ids);

/// A prompt as ids, and the ids that end generation.
struct Prompt {
  std::vector<int64_t> ids;
  std::vector<int64_t> stop_ids;
};

/// Encodes `text` as a prompt: as plain text without a template; with one, as a user message, so that the model answers
/// and stops at the end of its turn. `eos_ids` always end generation.
Prompt make_prompt(
    const std::string& text,
    const data::Tokenizer& tokenizer,
    const std::shared_ptr<const data::ChatTemplate>& chat_template,
    std::vector<int64_t> eos_ids);

}  // namespace lehr::train
