// Reader and validation of tokenizer.json.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lehr/data/bpe.h"
#include "lehr/data/decoder.h"
#include "lehr/data/normalizer.h"
#include "lehr/data/pretokenize.h"
#include "lehr/data/tokenizer.h"
#include "lehr/data/tokenizer_added.h"

namespace lehr::data {

/// The parts of a BPE tokenizer.
struct TokenizerParts {
  std::unique_ptr<Bpe> bpe;  ///< Its vocabulary contains the added tokens too.
  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  std::unique_ptr<Decoder> decoder;
  SpecialTokens special;
  std::vector<AddedToken> added;
  std::optional<int32_t> eos_id;
  std::optional<int32_t> bos_id;
  std::optional<int32_t> pad_id;
};

/// Reads `file` (tokenizer.json, also `.gz`). The tokens eos_token, bos_token and pad_token are those that
/// tokenizer_config.json among `files` names, and, as in transformers, those of special_tokens_map.json unless the
/// former has added_tokens_decoder. Ids depend on `file` alone. Throws a usage error that names file and field if
/// something is missing, wrong or unsupported. Truncation and padding are ignored, and so are add_bos_token and
/// add_eos_token, as in transformers 5.
TokenizerParts read_tokenizer(const std::filesystem::path& file, const std::vector<std::filesystem::path>& files);

}  // namespace lehr::data
