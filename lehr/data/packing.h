// Documents packed into rows of equal length, with what a model must know about their borders.
#pragma once

#include <cstdint>
#include <vector>

#include "lehr/data/token_stream.h"

namespace lehr::data {

/// Labels with this value are not predicted.
constexpr int64_t kNoLabel = -100;
/// The document id of padding.
constexpr int64_t kNoDocument = -1;

/// Where a row is written: four arrays of seq_len numbers each.
struct RowSpan {
  int64_t* input_ids;
  int64_t* labels;        ///< What follows each token in its own document; kNoLabel at a document's end and in padding.
  int64_t* position_ids;  ///< From 0 where a document (or its part in this row) starts.
  int64_t* document_ids;  ///< 0, 1, ... within the row; kNoDocument for padding. Tokens see only their own document.
};

enum class Packing {
  concat,  ///< All documents in a row, cut every seq_len tokens: a document may go on in the next row. No waste.
  whole,   ///< As many whole documents a row as fit; only documents longer than a row are cut; the rest is padding.
};

struct PackingOptions {
  int64_t seq_len = 0;
  Packing packing = Packing::concat;
  int64_t pad_id = 0;  ///< What stands in input_ids where there is no document.
};

/// The rows of a token stream, any of them at once. What a row holds depends on the stream and the options only.
///
/// Every pair (token, next token of the same document) is a label exactly once, where the next token is learned.
/// `concat` needs no memory; `whole` plans by best fit, longest first, and keeps 16 bytes a document.
class PackedRows {
 public:
  PackedRows(TokenStream stream, PackingOptions options);
  int64_t size() const { return num_rows_; }
  int64_t seq_len() const { return options_.seq_len; }
  void fill(int64_t row, const RowSpan& out) const;
  const TokenStream& stream() const { return stream_; }

  /// Part of a document in a row.
  struct Piece {
    int64_t begin = 0;  ///< Its first token's position in the stream.
    int32_t length = 0;
    bool continues = false;  ///< The token after it belongs to the same document.
  };

 private:
  std::vector<Piece> concat_row(int64_t row) const;
  void plan_whole();

  TokenStream stream_;
  PackingOptions options_;
  int64_t num_rows_ = 0;
  std::vector<Piece> pieces_;       // whole: by row
  std::vector<int64_t> row_begin_;  // whole: num_rows_ + 1 indices into pieces_
};

/// A row of padding alone.
void fill_padding(int64_t seq_len, int64_t pad_id, const RowSpan& out);

}  // namespace lehr::data
