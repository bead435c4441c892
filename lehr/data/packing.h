// Documents packed into sequences of equal length, with the labels, positions and document ids of their tokens.
#pragma once

#include <cstdint>
#include <vector>

#include "lehr/data/token_stream.h"

namespace lehr::data {

/// Labels with this value are not predicted (the ignore_index of PyTorch's losses).
constexpr int64_t kNoLabel = -100;
/// The document id of padding.
constexpr int64_t kNoDocument = -1;

/// Output arrays of one sequence: four arrays of seq_len numbers each.
struct RowSpan {
  int64_t* input_ids;
  int64_t* labels;        ///< The next token of the same document; kNoLabel at a document's end and in padding.
  int64_t* position_ids;  ///< From 0 at the start of a document (or of its part in this sequence).
  int64_t* document_ids;  ///< 0, 1, ... per sequence; kNoDocument: padding. Tokens attend to their own document only.
};

/// How documents fill sequences.
enum class Packing {
  concat,  ///< Concatenates documents, cut every seq_len tokens: one may continue in the next sequence. No waste.
  whole,   ///< As many whole documents per sequence as fit; only longer documents are cut; the rest is padding.
};

/// Options of packing.
struct PackingOptions {
  int64_t seq_len = 0;
  Packing packing = Packing::concat;
  int64_t pad_id = 0;  ///< The id of padding in input_ids.
};

/// The sequences of a token stream, with random access. A sequence depends on the stream and the options only.
///
/// Every pair (token, next token of the same document) is a label exactly once, if the next token is learned. `concat`
/// needs no memory; `whole` plans by best-fit decreasing (Ding et al., https://arxiv.org/abs/2404.10830), and keeps 16
/// bytes per document.
class PackedRows {
 public:
  PackedRows(TokenStream stream, PackingOptions options);
  int64_t size() const { return num_rows_; }
  int64_t seq_len() const { return options_.seq_len; }
  void fill(int64_t row, const RowSpan& out) const;
  const TokenStream& stream() const { return stream_; }

  /// Part of a document in a sequence.
  struct Piece {
    int64_t begin = 0;  ///< Position of its first token in the stream.
    int32_t length = 0;
    bool continues = false;  ///< The token after it belongs to the same document.
  };

 private:
  std::vector<Piece> concat_row(int64_t row) const;
  void plan_whole();

  TokenStream stream_;
  PackingOptions options_;
  int64_t num_rows_ = 0;
  std::vector<Piece> pieces_;       // whole: in the order of sequences
  std::vector<int64_t> row_begin_;  // whole: num_rows_ + 1 indices into pieces_
};

/// Fills a sequence with padding only.
void fill_padding(int64_t seq_len, int64_t pad_id, const RowSpan& out);

}  // namespace lehr::data
