// Reads Parquet and Arrow files as JSON lines, in a module of its own (liblehr_arrow.so), since it needs Apache Arrow.
#include "lehr/data/arrow_module.h"

#include <arrow/array.h>
#include <arrow/io/file.h>
#include <arrow/memory_pool.h>
#include <arrow/record_batch.h>

#include <algorithm>
#include <exception>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

#include "lehr/data/arrow_batches.h"
#include "lehr/data/arrow_json.h"
#include "lehr/data/limits.h"

namespace {

/// What the headers of files may make Arrow allocate at a time.
constexpr int64_t kMostBytes = int64_t{4} << 30;
/// Lines are handed over in pieces of about this size.
constexpr size_t kPieceBytes = size_t{1} << 20;

/// Returns empty lines with limits, beyond which Expansion refuses the table, too.
lehr::data::JsonLines lines_of(int64_t file_bytes) {
  const auto most = static_cast<size_t>(lehr::data::most_expanded_bytes(file_bytes));
  return {.most_bytes = std::min(most, lehr::data::kMaxLineBytes) + kPieceBytes, .most_left_out = most};
}

/// Returns the pool of all tables. It is never destroyed: Arrow's own threads may free the last buffers of a table
/// after the table.
arrow::MemoryPool* limited_pool() {
  static auto* const pool =
      new arrow::CappedMemoryPool(new arrow::ProxyMemoryPool(arrow::system_memory_pool()), kMostBytes);
  return pool;
}

}  // namespace

/// Converts batches to lines piece by piece.
struct ArrowTable {
  ArrowTable(std::shared_ptr<arrow::io::ReadableFile> file, bool parquet, const lehr::data::Columns& columns)
      : lines(lines_of(lehr::data::check(file->GetSize(), ""))),
        batches(lehr::data::open_batches(std::move(file), parquet, columns, limited_pool())) {}

  void read() {
    lines.text.clear();
    while (lines.text.empty()) {
      if (batch == nullptr || row == batch->num_rows()) {
        next_batch();
        if (batch == nullptr) {
          return;
        }
      }
      for (; row < batch->num_rows() && lines.text.size() < kPieceBytes; ++row, ++rows) {
        append_row();
      }
    }
  }

  void next_batch() {
    row = 0;
    try {
      batch = batches->next();
    } catch (const lehr::data::Problem&) {
      throw;
    } catch (const std::exception& error) {
      throw lehr::data::Problem(batches->where() + "is damaged (" + error.what() + ")");
    }
    if (batch != nullptr) {
      lehr::data::check(batch->ValidateFull(), batches->where());  // offsets and indices are those of the file
    }
  }

  void append_row() {
    try {
      lines.text += '{';
      for (int i = 0; i < batch->num_columns(); ++i) {
        lines.text += i == 0 ? "" : ",";
        lehr::data::append_json(batch->column_name(i), lines);
        lines.text += ':';
        lehr::data::append_json(*batch->column(i), row, lines);
      }
      lines.text += "}\n";
    } catch (const std::length_error&) {
      throw lehr::data::Problem(
          batches->where() +
          "expands to more than 1000 times the file's size, or to a line of more than 1 GiB, in row " +
          std::to_string(rows + 1));
    }
  }

  lehr::data::JsonLines lines;
  std::unique_ptr<lehr::data::Batches> batches;
  std::shared_ptr<arrow::RecordBatch> batch;
  int64_t row = 0;   // in the batch
  int64_t rows = 0;  // in the table
};

namespace {

/// Runs `action`; returns whether it threw no exception, and sets `problem` otherwise.
template <class Action>
bool without_problem(const char** problem, const Action& action) {
  static thread_local std::string text;  // read by the caller; no scope
  try {
    action();
    return true;
  } catch (const std::exception& error) {  // also Parquet's
    text = error.what();
  }
  *problem = text.c_str();
  return false;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) ArrowTable* lehr_arrow_open(
    int descriptor, bool parquet, const ArrowColumn* columns, int64_t num_columns, const char** problem) {
  ArrowTable* table = nullptr;
  without_problem(problem, [&] {
    lehr::data::Columns names;
    for (int64_t i = 0; i < num_columns; ++i) {
      names.emplace_back(columns[i].name, columns[i].required);
    }
    table = new ArrowTable(
        lehr::data::check(arrow::io::ReadableFile::Open(descriptor, limited_pool()), ""), parquet, names);
  });
  return table;
}

extern "C" __attribute__((visibility("default"))) bool lehr_arrow_read(
    ArrowTable* table, const char** lines, int64_t* size, const char** problem) {
  return without_problem(problem, [&] {
    table->read();
    *lines = table->lines.text.data();
    *size = static_cast<int64_t>(table->lines.text.size());
  });
}

extern "C" __attribute__((visibility("default"))) void lehr_arrow_close(ArrowTable* table) {
  delete table;
}
