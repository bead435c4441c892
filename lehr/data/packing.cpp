// Packing of documents into sequences: by cutting the stream, or by best fit.
#include "lehr/data/packing.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "lehr/base/error.h"

namespace lehr::data {
namespace {

struct Cursor {
  int64_t filled = 0;
  int64_t document = 0;
};

void write_piece(const TokenStream& stream, const PackedRows::Piece& piece, const RowSpan& out, Cursor& cursor) {
  int64_t* ids = out.input_ids + cursor.filled;
  int64_t* labels = out.labels + cursor.filled;
  stream.copy(piece.begin, piece.length, ids);
  std::copy(ids + 1, ids + piece.length, labels);
  if (piece.continues) {
    stream.copy(piece.begin + piece.length, 1, labels + piece.length - 1);
  } else {
    labels[piece.length - 1] = kNoLabel;
  }
  if (stream.has_unlearned()) {
    for (int64_t i = 0; i + 1 < piece.length || (piece.continues && i < piece.length); ++i) {
      labels[i] = stream.is_learned(piece.begin + i + 1) ? labels[i] : kNoLabel;
    }
  }
  std::iota(out.position_ids + cursor.filled, out.position_ids + cursor.filled + piece.length, int64_t{0});
  std::fill_n(out.document_ids + cursor.filled, piece.length, cursor.document);
  cursor.filled += piece.length;
  cursor.document += 1;
}

RowSpan from(const RowSpan& out, int64_t position) {
  return {out.input_ids + position, out.labels + position, out.position_ids + position, out.document_ids + position};
}

// Whether some document has a token to predict.
bool has_longer_document(const TokenStream& stream) {
  for (int64_t i = 0; i < stream.num_documents(); ++i) {
    if (stream.document(i).size() > 1) {
      return true;
    }
  }
  return false;
}
}  // namespace

PackedRows::PackedRows(TokenStream stream, PackingOptions options) : stream_(std::move(stream)), options_(options) {
  require(
      options.seq_len > 0 && options.seq_len < (int64_t{1} << 31),
      "training.seq_len: {} is not in [1, 2^31)",
      options.seq_len);
  if (options.packing == Packing::whole) {
    plan_whole();
  } else {
    // The stream's last token predicts nothing, so it needs no sequence of its own.
    const int64_t predicting = has_longer_document(stream_) ? stream_.num_tokens() - 1 : 0;
    num_rows_ = (predicting + options.seq_len - 1) / options.seq_len;
  }
  require(
      num_rows_ > 0,
      "{}: holds {} tokens in {} documents, which leaves nothing to predict. At least one document of two tokens is "
      "needed",
      stream_.name(),
      stream_.num_tokens(),
      stream_.num_documents());
}

std::vector<PackedRows::Piece> PackedRows::concat_row(int64_t row) const {
  const int64_t begin = row * options_.seq_len;
  const int64_t end = std::min(begin + options_.seq_len, stream_.num_tokens());
  std::vector<Piece> pieces;
  int64_t position = begin;
  for (int64_t i = stream_.document_at(begin); position < end; ++i) {
    const int64_t document_end = stream_.document(i).end;
    const int64_t stop = std::min(document_end, end);
    if (stop > position) {
      pieces.push_back({position, static_cast<int32_t>(stop - position), stop < document_end});
      position = stop;
    }
  }
  return pieces;
}

void PackedRows::plan_whole() {
  const int64_t length_limit = options_.seq_len;
  for (int64_t i = 0; i < stream_.num_documents(); ++i) {
    const TokenRange document = stream_.document(i);
    // A document's last token alone predicts nothing: no piece is made of it.
    for (int64_t begin = document.begin; begin + 1 < document.end; begin += length_limit) {
      const int64_t length = std::min(length_limit, document.end - begin);
      pieces_.push_back({begin, static_cast<int32_t>(length), begin + length < document.end});
    }
  }
  std::vector<int64_t> longest_first(pieces_.size());
  std::iota(longest_first.begin(), longest_first.end(), int64_t{0});
  std::stable_sort(longest_first.begin(), longest_first.end(), [&](int64_t a, int64_t b) {
    return pieces_[a].length > pieces_[b].length;
  });

  std::vector<int64_t> row_of(pieces_.size());
  std::map<int64_t, std::vector<int64_t>> rows_by_space;  // only sequences with room left
  for (const int64_t index : longest_first) {
    const int64_t length = pieces_[index].length;
    auto best = rows_by_space.lower_bound(length);
    int64_t space = length_limit;
    if (best == rows_by_space.end()) {
      row_of[index] = num_rows_++;
    } else {
      space = best->first;
      row_of[index] = best->second.back();
      best->second.pop_back();
      if (best->second.empty()) {
        rows_by_space.erase(best);
      }
    }
    if (space > length) {
      rows_by_space[space - length].push_back(row_of[index]);
    }
  }

  // Sequences are in the order of their first documents, and the documents of a sequence in the order of the corpus:
  // without shuffling the corpus is then read roughly in its own order.
  std::vector<int64_t> rank(num_rows_, -1);
  int64_t next_rank = 0;
  row_begin_.assign(num_rows_ + 1, 0);
  for (size_t i = 0; i < pieces_.size(); ++i) {
    if (rank[row_of[i]] < 0) {
      rank[row_of[i]] = next_rank++;
    }
    row_of[i] = rank[row_of[i]];
    ++row_begin_[row_of[i] + 1];
  }
  std::partial_sum(row_begin_.begin(), row_begin_.end(), row_begin_.begin());
  std::vector<Piece> by_row(pieces_.size());
  std::vector<int64_t> next(row_begin_.begin(), row_begin_.end() - 1);
  for (size_t i = 0; i < pieces_.size(); ++i) {
    by_row[next[row_of[i]]++] = pieces_[i];
  }
  pieces_ = std::move(by_row);
}

void PackedRows::fill(int64_t row, const RowSpan& out) const {
  require(row >= 0 && row < num_rows_, "{}: row {} was asked for, there are {}", stream_.name(), row, num_rows_);
  Cursor cursor;
  if (options_.packing == Packing::whole) {
    for (int64_t i = row_begin_[row]; i < row_begin_[row + 1]; ++i) {
      write_piece(stream_, pieces_[i], out, cursor);
    }
  } else {
    for (const Piece& piece : concat_row(row)) {
      write_piece(stream_, piece, out, cursor);
    }
  }
  fill_padding(options_.seq_len - cursor.filled, options_.pad_id, from(out, cursor.filled));
}

void fill_padding(int64_t seq_len, int64_t pad_id, const RowSpan& out) {
  std::fill_n(out.input_ids, seq_len, pad_id);
  std::fill_n(out.labels, seq_len, kNoLabel);
  std::fill_n(out.position_ids, seq_len, int64_t{0});
  std::fill_n(out.document_ids, seq_len, kNoDocument);
}

}  // namespace lehr::data
