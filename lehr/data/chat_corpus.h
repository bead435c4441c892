// Tokenization of conversation files into a stream of tokens, with a mask of the tokens to learn.
#pragma once

#include <functional>
#include <string>

#include "lehr/data/conversation.h"
#include "lehr/data/data_config.h"
#include "lehr/data/token_stream.h"

namespace lehr::data {

/// Reads and encodes all conversations of `dataset`, one document each, on all cores. Conversations longer than
/// `max_length` tokens are dropped or truncated (dataset.too_long), and those without a token to learn are dropped;
/// `inform` receives their numbers. Throws usage errors that name file and line.
TokenStream read_conversations(
    const DatasetConfig& dataset,
    const ConversationEncoder& encoder,
    const Tokenizer& tokenizer,
    int64_t max_length,
    const std::function<void(const std::string&)>& inform = {});

}  // namespace lehr::data
