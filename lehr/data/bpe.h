// Byte-pair encoding: the merge table, and its application to one word at a time.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lehr/data/bpe_vocabulary.h"

namespace lehr::data {

/// The flags of a BPE model in tokenizer.json, under their names in that file.
struct BpeOptions {
  /// Token of a symbol (a byte, or with Spelling::characters a character) that is not in the vocabulary; without it
  /// such symbols are dropped.
  std::optional<std::string> unk_token;
  bool fuse_unk = false;       ///< Consecutive unknown symbols become one unk_token.
  bool byte_fallback = false;  ///< An unknown symbol becomes the tokens "<0xC4>" ... of the bytes of its spelling.
  bool ignore_merges = false;  ///< A word that is itself a token is not merged from parts.
};

/// The merges in order: the first has the lowest rank. Merges are applied in the order of ranks.
class Merges {
 public:
  Merges() : Merges(16) {}

  /// Adds the next merge: `left` followed by `right` becomes `merged`. The last occurrence of a duplicate pair counts.
  void add(int32_t left, int32_t right, int32_t merged);

  static constexpr uint32_t kNone = UINT32_MAX;

  /// Returns the rank of a pair, or kNone.
  uint32_t rank(int32_t left, int32_t right) const {
    const uint64_t pair = static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
    for (size_t i = hash(pair) & mask_;; i = (i + 1) & mask_) {
      const Slot& slot = slots_[i];
      if (slot.pair == pair) {
        return slot.rank;
      }
      if (slot.rank == kNone) {
        return kNone;
      }
    }
  }

  int32_t merged(uint32_t rank) const { return merged_[rank]; }
  /// The tokens that merges produce, by rank.
  const std::vector<int32_t>& all_merged() const { return merged_; }

 private:
  struct Slot {
    uint64_t pair = UINT64_MAX;
    uint32_t rank = kNone;
  };
  static uint64_t hash(uint64_t pair) {
    pair *= 0x9E3779B97F4A7C15u;
    return pair ^ pair >> 32;
  }

  explicit Merges(size_t slots) : slots_(slots), mask_(slots - 1) {}
  Slot& slot_of(uint64_t pair);

  std::vector<Slot> slots_;
  std::vector<int32_t> merged_;  // indexed by rank
  size_t mask_ = 0;
  size_t pairs_ = 0;
};

/// Vocabulary and merges together. Immutable except for a memo that many threads may fill concurrently.
class Bpe {
 public:
  /// Throws a usage error that starts with `where` if unk_token is not in the vocabulary.
  Bpe(Vocabulary vocabulary, Merges merges, const BpeOptions& options, const std::string& where);

  /// Appends the ids of `word`, one piece of a pre-tokenizer. Takes O(n log n) time for n bytes.
  void encode_word(std::string_view word, std::vector<int32_t>& ids) const;

  const Vocabulary& vocabulary() const { return vocabulary_; }

 private:
  static constexpr size_t kShortWord = 48;  // up to this size, a scan over all pairs is faster than a heap

  using ShortWord = std::array<int32_t, kShortWord>;
  void merge_word(std::string_view word, std::vector<int32_t>& ids) const;
  void merge_short(ShortWord& symbols, size_t count, std::vector<int32_t>& ids) const;
  void merge_long(const std::vector<int32_t>& symbols, std::vector<int32_t>& ids) const;
  /// Returns the initial symbols of any word.
  std::vector<int32_t> start_symbols(std::string_view word) const;
  /// Returns the tokens of the bytes of a symbol that is not in the vocabulary; empty without byte_fallback.
  std::vector<int32_t> fallback(std::string_view symbol) const;

  Vocabulary vocabulary_;
  Merges merges_;
  std::array<int32_t, 256> byte_id_{};              // -1: not in the vocabulary
  std::array<std::vector<int32_t>, 256> fallback_;  // for bytes not in the vocabulary, with byte_fallback
  int32_t unk_id_ = -1;
  bool fuse_unk_ = false;
  bool ignore_merges_ = false;
  bool has_all_bytes_ = true;
  // By id: whether merges produce this token from its own bytes. Computed when a word is first equal to the token;
  // every thread computes the same value, so concurrent writes are harmless.
  enum : uint8_t { kUnknown, kWhole, kParts };
  std::unique_ptr<std::atomic<uint8_t>[]> made_whole_;
};

}  // namespace lehr::data
