// Conversations in a run: which template writes them, and how a sample is asked for.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lehr/data/chat_template.h"
#include "lehr/data/tokenizer.h"
#include "lehr/train/config.h"

namespace lehr::train {

/// The template that the config names: tokenizer.chat_template, or that of the tokenizer's folder. Throws a usage error
/// that names the key when there is none.
std::shared_ptr<const data::ChatTemplate> chat_template_of(const TrainConfig& config);

/// `eos_ids`, and the token that ends a turn of the template's conversations.
std::vector<int64_t> stop_ids_of(
    const data::Tokenizer& tokenizer,
    const std::shared_ptr<const data::ChatTemplate>& chat_template,
    std::vector<int64_t> eos_ids);

/// A prompt as ids, and where to stop.
struct Prompt {
  std::vector<int64_t> ids;
  std::vector<int64_t> stop_ids;
};

/// `text` as a model goes on from it: as it is; or, with a template, as what a user says, so that the model answers,
/// and stops with its turn. `eos_ids` stop in any case.
Prompt make_prompt(
    const std::string& text,
    const data::Tokenizer& tokenizer,
    const std::shared_ptr<const data::ChatTemplate>& chat_template,
    std::vector<int64_t> eos_ids);

}  // namespace lehr::train
