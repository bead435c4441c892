// What tokenizer.json says, read and checked.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lehr/data/bpe.h"
#include "lehr/data/pretokenize.h"
#include "lehr/data/tokenizer_added.h"

namespace lehr::data {

/// The parts of a byte-level BPE tokenizer.
struct TokenizerParts {
  std::unique_ptr<Bpe> bpe;  ///< Its vocabulary knows the added tokens too.
  std::unique_ptr<Splitter> splitter;
  std::vector<AddedToken> added;
  bool nfc = false;  ///< Whether text is normalized to NFC.
  std::optional<int32_t> eos_id;
  std::optional<int32_t> bos_id;
  std::optional<int32_t> pad_id;
};

/// Reads `file` (tokenizer.json, `.gz` or not) and, where it is given, `config` (tokenizer_config.json), of which count
/// eos_token, bos_token and pad_token alone: ids are what `file` alone gives. Throws a usage error that names file and
/// field where something is missing, wrong or not supported. Truncation, padding and post-processors (which add bos and
/// the like) do not count: encoding adds nothing.
TokenizerParts read_tokenizer(const std::filesystem::path& file, const std::optional<std::filesystem::path>& config);

}  // namespace lehr::data
