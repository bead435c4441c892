// The record batches of Parquet and Arrow files. Part of the module liblehr_arrow.so.
#pragma once

#include <arrow/io/file.h>
#include <arrow/memory_pool.h>
#include <arrow/record_batch.h>
#include <arrow/result.h>
#include <arrow/status.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace lehr::data {

/// An error in a table. The caller's message is the file's name, ": " and this text.
class Problem : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Throws a Problem unless `status` is good. `where` is "" or the place in the file, with a space after it.
void check(const arrow::Status& status, const std::string& where);

/// Returns the value, or throws a Problem.
template <class T>
T check(arrow::Result<T>&& result, const std::string& where) {
  check(result.status(), where);
  return std::move(result).ValueUnsafe();
}

/// Names of columns, and whether a table without the column is refused.
using Columns = std::vector<std::pair<std::string, bool>>;

/// The batches of a table, in order, with the columns to read.
class Batches {
 public:
  virtual ~Batches() = default;
  /// Returns null at the end.
  virtual std::shared_ptr<arrow::RecordBatch> next() = 0;
  /// Returns the place of what next() reads, for messages.
  virtual std::string where() const = 0;
};

/// Opens a Parquet file, or an Arrow file: the stream format, as save_to_disk writes it, or the file format. Throws a
/// Problem, or an exception of Parquet, also for a column that is missing, ambiguous or of a type without JSON.
std::unique_ptr<Batches> open_batches(
    std::shared_ptr<arrow::io::ReadableFile> file, bool parquet, const Columns& columns, arrow::MemoryPool* pool);

}  // namespace lehr::data
