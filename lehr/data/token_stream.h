// Streams of tokenized documents, memory-mapped or in memory.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace lehr::data {

/// The storage of a stream's ids, and its properties.
struct TokenStorage {
  std::string name{};                ///< Name of the file, for messages.
  const uint16_t* narrow = nullptr;  ///< The ids, if the vocabulary has at most 65536 entries...
  const int32_t* wide = nullptr;     ///< ...and otherwise.
  int64_t num_tokens = 0;
  /// num_documents + 1 positions: document i is [boundaries[i], boundaries[i+1]).
  const uint64_t* boundaries = nullptr;
  int64_t num_documents = 0;
  const uint8_t* learned = nullptr;  ///< The loss mask: per token, whether it is a label; null: all are.
  int64_t vocab_size = 0;
  int64_t max_id = -1;  ///< The largest id in the storage, -1 if it is empty.
  uint64_t tokenizer_fingerprint = 0;
  std::shared_ptr<const void> owner{};  ///< Keeps the memory alive.
};

/// Half-open range of positions.
struct TokenRange {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t size() const { return end - begin; }
};

/// A range of positions of a storage, cheap to copy and safe to read from many threads. Positions count from the start
/// of the stream; a document that the range cuts counts as a separate document.
class TokenStream {
 public:
  explicit TokenStream(TokenStorage storage);

  int64_t num_tokens() const { return range_.size(); }
  int64_t num_documents() const { return last_document_ - first_document_; }
  /// Returns the positions of document `index`. Documents may be empty.
  TokenRange document(int64_t index) const;
  /// Returns the document that contains `position`.
  int64_t document_at(int64_t position) const;
  /// Writes `count` ids from `position` on to `out`. Throws a usage error for an id above the storage's largest id,
  /// which only damage can cause.
  void copy(int64_t position, int64_t count, int64_t* out) const;
  /// Returns whether some tokens are inputs only, not labels, such as the prompts of conversations. Such documents are
  /// never cut, as an answer without its prompt would teach something else.
  bool has_unlearned() const { return storage_->learned != nullptr; }
  /// Returns whether the token at `position` is a label.
  bool is_learned(int64_t position) const {
    return storage_->learned == nullptr || storage_->learned[range_.begin + position] != 0;
  }
  /// Returns the ids of [begin, end).
  std::vector<int64_t> ids(TokenRange range) const;

  /// Returns the positions [begin, end) as a stream.
  TokenStream slice(TokenRange range) const;

  const std::string& name() const { return storage_->name; }
  int64_t vocab_size() const { return storage_->vocab_size; }
  int64_t max_id() const { return storage_->max_id; }
  uint64_t tokenizer_fingerprint() const { return storage_->tokenizer_fingerprint; }

 private:
  TokenStream(std::shared_ptr<const TokenStorage> storage, TokenRange range);
  int64_t boundary(int64_t index) const;

  std::shared_ptr<const TokenStorage> storage_;
  TokenRange range_;  // in the storage
  int64_t first_document_ = 0;
  int64_t last_document_ = 0;
};

/// Returns the position at which to split a stream so that about the last `validation_fraction` is used for validation:
/// between two documents if such a border is near, else inside a document (never inside a conversation). The two sides
/// do not overlap.
int64_t validation_cut(const TokenStream& stream, double validation_fraction);

/// Throws a usage error that names the data and its largest id unless all ids are below `vocab_size`.
void require_vocabulary(const TokenStream& stream, int64_t vocab_size);

/// Returns whether ids of a vocabulary of this size are stored in 16 bits.
inline bool fits_16_bits(int64_t vocab_size) {
  return vocab_size <= 65536;
}

/// Collects documents in memory.
class TokenBuffer {
 public:
  /// Ids must be in [0, vocab_size).
  TokenBuffer(std::string name, int64_t vocab_size, uint64_t tokenizer_fingerprint);
  void append(std::span<const int32_t> document);
  /// Appends a document with a flag per id: whether it is a label. Either all documents of a buffer have flags, or
  /// none.
  void append(std::span<const int32_t> document, std::span<const uint8_t> learned);
  /// Returns the documents so far and empties the buffer.
  TokenStream take();

 private:
  TokenStorage storage_;
  struct Memory {
    std::vector<uint16_t> narrow;
    std::vector<int32_t> wide;
    std::vector<uint64_t> boundaries{0};
    std::vector<uint8_t> learned;
  };
  std::shared_ptr<Memory> memory_;
};

}  // namespace lehr::data
