// BPE tokenizers: added tokens, then normalization, then words, then merges.
#include "lehr/data/tokenizer.h"
#include "lehr/data/tokenizer_kinds.h"
#include "lehr/data/tokenizer_read.h"

namespace lehr::data {
namespace {

/// Returns the added tokens that are matched before normalization, or (with `normalized`) after it, as normal text.
std::vector<AddedToken> added_tokens(const TokenizerParts& parts, bool normalized) {
  std::vector<AddedToken> tokens;
  for (AddedToken token : parts.added) {
    if (token.normalized == normalized) {
      Normalizer::Buffers buffers;
      if (normalized) {
        token.content = std::string(parts.normalizer.apply(token.content, buffers));
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
    Place place = Place::start;
    return encode_at(text, place);
  }

  std::vector<std::vector<int32_t>> encode_parts(std::string_view text, std::span<const size_t> cuts) const override {
    Place place = Place::start;
    return encode_each_part(text, cuts, [&](std::string_view part) { return encode_at(part, place); });
  }

  SpecialTokens special_tokens() const override { return parts_.special; }

  std::vector<int32_t> encode_word(std::string_view word) const override {
    const bool prepends = parts_.normalizer.prepends() || parts_.pre_tokenizer.prepends();
    return prepends ? encode(word) : Tokenizer::encode_word(word);
  }

  std::string decode(std::span<const int32_t> ids, bool skip_special) const override {
    std::vector<std::string_view> tokens;
    tokens.reserve(ids.size());
    for (int32_t id : ids) {
      const bool skipped = skip_special && id >= 0 && id < vocab_size() && special_[static_cast<size_t>(id)];
      const std::string_view token = parts_.bpe->vocabulary().bytes_of(id);
      if (!skipped && !token.empty()) {
        tokens.push_back(token);
      }
    }
    return parts_.decoder->decode(tokens);
  }

  int64_t vocab_size() const override { return parts_.bpe->vocabulary().size(); }
  std::optional<int32_t> eos_id() const override { return parts_.eos_id; }
  std::optional<int32_t> bos_id() const override { return parts_.bos_id; }
  std::optional<int32_t> pad_id() const override { return parts_.pad_id; }
  std::vector<std::filesystem::path> files() const override { return files_; }

 private:
  /// Returns the ids of a text at `place`, and sets it to the place of what follows.
  std::vector<int32_t> encode_at(std::string_view text, Place& place) const {
    std::vector<int32_t> ids;
    ids.reserve(text.size() / 4 + 8);
    const auto add_token = [&](int32_t id) {
      ids.push_back(id);
      place = Place::after_added_token;
    };
    Normalizer::Buffers buffers;
    before_.split(text, [&](const AddedTokenFinder::Part& part) {
      if (part.id >= 0) {
        add_token(part.id);
        return;
      }
      const std::string_view normal = parts_.normalizer.apply(part.text, buffers, place == Place::continued);
      after_.split(normal, [&](const AddedTokenFinder::Part& inner) {
        if (inner.id >= 0) {
          add_token(inner.id);
          return;
        }
        parts_.pre_tokenizer.split(
            inner.text, place, [&](std::string_view word) { parts_.bpe->encode_word(word, ids); });
        place = Place::continued;
      });
    });
    return ids;
  }

  TokenizerParts parts_;
  AddedTokenFinder before_;
  AddedTokenFinder after_;
  std::vector<bool> special_;  // indexed by id
  std::vector<std::filesystem::path> files_;
};

}  // namespace

std::unique_ptr<Tokenizer> make_bpe_tokenizer(
    const std::filesystem::path& file, std::vector<std::filesystem::path> files) {
  return std::make_unique<BpeTokenizer>(read_tokenizer(file, files), std::move(files));
}

}  // namespace lehr::data
