// Files of conversations to a stream of tokens that knows which of them are learned.
#pragma once

#include <functional>
#include <string>

#include "lehr/data/conversation.h"
#include "lehr/data/data_config.h"
#include "lehr/data/token_stream.h"

namespace lehr::data {

/// Reads and encodes all conversations of `dataset`, a document each, with all cores. None is longer than `max_length`
/// tokens: longer ones are left out or lose their end, as dataset.too_long says, and so are those without a token to
/// learn; `inform` is told how many. Throws usage errors that name file and line.
TokenStream read_conversations(
    const DatasetConfig& dataset,
    const ConversationEncoder& encoder,
    const Tokenizer& tokenizer,
    int64_t max_length,
    const std::function<void(const std::string&)>& inform = {});

}  // namespace lehr::data
