// The post-processor of tokenizer.json: the special tokens around a text.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <string>

#include "lehr/data/bpe_vocabulary.h"
#include "lehr/data/tokenizer.h"

namespace lehr::data {

/// Reads `post_processor` of tokenizer.json: null, ByteLevel (which adds nothing), TemplateProcessing (its template for
/// a single text), BertProcessing, RobertaProcessing or a Sequence of these. Throws a usage error that begins with
/// `where` for others, and for tokens that `vocabulary` does not have.
SpecialTokens read_post_processor(const nlohmann::json& node, const Vocabulary& vocabulary, const std::string& where);

}  // namespace lehr::data
