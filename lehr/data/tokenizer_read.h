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

/// Reads `file` (tokenizer.json, also `.gz`) and, if given, `config` (tokenizer_config.json), of which only eos_token,
/// bos_token and pad_token are used: ids depend on `file` alone. Throws a usage error that names file and field if
/// something is missing, wrong or unsupported. Truncation and padding are ignored.
TokenizerParts read_tokenizer(const std::filesystem::path& file, const std::optional<std::filesystem::path>& config);

}  // namespace lehr::data
