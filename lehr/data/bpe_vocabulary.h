// The vocabulary of a BPE tokenizer: the text of each id, and the id of a given text.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace lehr::data {

/// A 64-bit hash that is fast for few bytes.
inline uint64_t hash_bytes(std::string_view bytes) {
  constexpr uint64_t kFactor = 0x9E3779B97F4A7C15u;
  const auto load = [](const char* at, size_t size) {
    uint64_t word = 0;
    std::memcpy(&word, at, size);
    return word;
  };
  uint64_t hash = bytes.size() * kFactor;
  const char* at = bytes.data();
  size_t left = bytes.size();
  for (; left >= 8; at += 8, left -= 8) {
    hash = (hash ^ load(at, 8)) * kFactor;
    hash ^= hash >> 32;
  }
  if (left >= 4) {
    hash ^= load(at, 4) | load(at + left - 4, 4) << 32;
  } else if (left != 0) {
    hash ^= load(at, 1) | load(at + left / 2, 1) << 8 | load(at + left - 1, 1) << 16;
  }
  hash *= kFactor;
  return hash ^ hash >> 29;
}

/// How tokenizer.json spells tokens.
enum class Spelling {
  bytes,       ///< Each byte as one printable character, as GPT-2 does ("Ġ" is a space).
  characters,  ///< As they are, as SentencePiece does ("▁" stands for a space, "<0x0A>" for a byte).
};

/// The tokens of a vocabulary. With Spelling::bytes they are the bytes that are spelled.
class Vocabulary {
 public:
  explicit Vocabulary(Spelling spelling = Spelling::bytes) : spelling_(spelling) {}

  /// The largest id that is accepted.
  static constexpr int64_t kMaxId = (1 << 26) - 1;

  Spelling spelling() const { return spelling_; }
  /// Returns the spelling of `byte`.
  std::string spell(uint8_t byte) const;

  /// Allocates space for `tokens` tokens.
  void reserve(size_t tokens);

  /// Adds a token. Returns false if another token has the spelling or the id.
  bool add(std::string_view spelling, int64_t id);

  /// Adds a token that merges cannot produce, for `bytes_of` and `id_of_spelling`. Returns false if the id is taken.
  bool add_apart(std::string_view spelling, int64_t id);

  /// Returns the id of the token with these bytes, or -1.
  int32_t find(std::string_view bytes) const {
    if (slots_.empty()) {
      return -1;
    }
    const uint64_t head = head_of(bytes);
    for (size_t i = hash_bytes(bytes) & mask_;; i = (i + 1) & mask_) {
      const Slot& slot = slots_[i];
      if (slot.id < 0) {
        return -1;
      }
      if (slot.head == head && slot.size == bytes.size() &&
          (slot.size <= 8 ||
           std::memcmp(arena_.data() + tokens_[static_cast<size_t>(slot.id)].begin, bytes.data(), bytes.size()) == 0)) {
        return slot.id;
      }
    }
  }

  /// Returns the id of a token by its spelling, or -1.
  int32_t id_of_spelling(std::string_view spelling) const;

  /// Returns the bytes that `id` decodes to; empty for ids without a token.
  std::string_view bytes_of(int64_t id) const {
    if (id < 0 || id >= size()) {
      return {};
    }
    const Token& token = tokens_[static_cast<size_t>(id)];
    return {arena_.data() + token.begin, token.size};
  }

  /// Returns the largest id plus one.
  int64_t size() const { return static_cast<int64_t>(tokens_.size()); }
  /// Returns the length of the longest token that `find` can return.
  size_t longest() const { return longest_; }

 private:
  // Converts a spelling to bytes. Returns false if a character in it spells no byte; then `bytes` is `spelling`, as in
  // the `tokenizers` package: such a token decodes to itself, and only merges can produce it.
  bool to_bytes(std::string_view spelling, std::string& bytes) const;

  struct Token {
    size_t begin = 0;
    uint32_t size = 0;
    bool taken = false;
  };
  /// 16 bytes, so that short tokens are compared within the table.
  struct Slot {
    uint64_t head = 0;
    uint32_t size = 0;
    int32_t id = -1;
  };

  static uint64_t head_of(std::string_view bytes) {
    uint64_t head = 0;
    if (bytes.size() >= 8) {
      std::memcpy(&head, bytes.data(), 8);
    } else if (bytes.size() >= 4) {
      uint32_t low = 0;
      uint32_t high = 0;
      std::memcpy(&low, bytes.data(), 4);
      std::memcpy(&high, bytes.data() + bytes.size() - 4, 4);
      head = low | static_cast<uint64_t>(high) << 32;  // they overlap, but are unique together with the size
    } else if (!bytes.empty()) {
      const auto byte = [&](size_t i) { return static_cast<uint64_t>(static_cast<uint8_t>(bytes[i])); };
      head = byte(0) | byte(bytes.size() / 2) << 8 | byte(bytes.size() - 1) << 16;
    }
    return head;
  }

  bool store(std::string_view bytes, int64_t id);
  void insert(std::string_view bytes, int32_t id);
  void rehash(size_t capacity);

  Spelling spelling_;
  std::string arena_;
  std::vector<Token> tokens_;
  std::vector<Slot> slots_;
  size_t mask_ = 0;
  size_t used_ = 0;
  size_t longest_ = 0;
  std::unordered_map<std::string, int32_t> apart_;  // by spelling: tokens that `find` must not return
};

}  // namespace lehr::data
