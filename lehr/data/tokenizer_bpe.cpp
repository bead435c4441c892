// Byte-level BPE tokenizers: added tokens, then normalization, then words, then merges.
#include "lehr/data/normalize.h"
#include "lehr/data/tokenizer.h"
#include "lehr/data/tokenizer_kinds.h"
#include "lehr/data/tokenizer_read.h"
#include "lehr/data/unicode.h"

namespace lehr::data {
namespace {

/// Returns the added tokens that are matched before normalization, or (with `normalized`) after it.
std::vector<AddedToken> added_tokens(const TokenizerParts& parts, bool normalized) {
  std::vector<AddedToken> tokens;
  for (AddedToken token : parts.added) {
    if (token.normalized == normalized) {
      std::string buffer;
      if (normalized && parts.nfc) {
        token.content = std::string(to_nfc(token.content, buffer));
      }
      tokens.push_back(std::move(token));
    }
  }
  return tokens;
}

class BpeTokenizer : public Tokenizer {
 public:
  BpeTokenizer(TokenizerParts parts, std::vector<std::filesystem::path> files)
      : parts_(std::move(parts)),
        before_(added_tokens(parts_, /*normalized=*/false)),
        after_(added_tokens(parts_, /*normalized=*/true)),
        special_(static_cast<size_t>(vocab_size()), false),
        files_(std::move(files)) {
    for (const AddedToken& token : parts_.added) {
      special_[static_cast<size_t>(token.id)] = token.special;
    }
  }

  std::vector<int32_t> encode(std::string_view text) const override {
    std::vector<int32_t> ids;
    ids.reserve(text.size() / 4 + 8);
    std::string buffer;
    before_.split(text, [&](const AddedTokenFinder::Part& part) {
      if (part.id >= 0) {
        ids.push_back(part.id);
        return;
      }
      const std::string_view normal = parts_.nfc ? to_nfc(part.text, buffer) : part.text;
      after_.split(normal, [&](const AddedTokenFinder::Part& inner) {
        if (inner.id >= 0) {
          ids.push_back(inner.id);
          return;
        }
        parts_.splitter->split(inner.text, [&](std::string_view word) { parts_.bpe->encode_word(word, ids); });
      });
    });
    return ids;
  }

  std::string decode(std::span<const int32_t> ids, bool skip_special) const override {
    std::string bytes;
    bytes.reserve(ids.size() * 5);
    for (int32_t id : ids) {
      const bool skipped = skip_special && id >= 0 && id < vocab_size() && special_[static_cast<size_t>(id)];
      if (!skipped) {
        bytes += parts_.bpe->vocabulary().bytes_of(id);
      }
    }
    return replace_invalid_utf8(std::move(bytes));
  }

  int64_t vocab_size() const override { return parts_.bpe->vocabulary().size(); }
  std::optional<int32_t> eos_id() const override { return parts_.eos_id; }
  std::optional<int32_t> bos_id() const override { return parts_.bos_id; }
  std::optional<int32_t> pad_id() const override { return parts_.pad_id; }
  std::vector<std::filesystem::path> files() const override { return files_; }

 private:
  TokenizerParts parts_;
  AddedTokenFinder before_;
  AddedTokenFinder after_;
  std::vector<bool> special_;  // indexed by id
  std::vector<std::filesystem::path> files_;
};

}  // namespace

std::unique_ptr<Tokenizer> make_bpe_tokenizer(
    const std::filesystem::path& file,
    const std::optional<std::filesystem::path>& config,
    std::vector<std::filesystem::path> files) {
  return std::make_unique<BpeTokenizer>(read_tokenizer(file, config), std::move(files));
}

}  // namespace lehr::data
