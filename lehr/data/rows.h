// Rows of named values: the lines of a JSON lines file, or the rows of a table, which become such lines.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "lehr/data/byte_source.h"

namespace lehr::data {

/// The keys that a reader uses; other columns of a table are not read.
struct RowKeys {
  std::vector<std::string> required{};  ///< A table without one of these columns is refused.
  std::vector<std::string> optional{};
};

/// Returns whether a file is a table by its extension: .parquet or .arrow.
bool is_table(const std::filesystem::path& path);

/// Opens `path` as JSON lines: a table by the module liblehr_arrow.so, any other file by open_bytes. Row n of a table
/// is line n, an object of its columns among `keys`. Null columns are null in it; null fields of inner objects are left
/// out. One page of a Parquet file, or one record batch of an Arrow file, is in memory at a time.
///
/// Throws usage errors that name the file: one that says how to get Apache Arrow if the module cannot be opened; a
/// missing column, with the names of the existing ones; damage, with the row group or record batch; and unbounded
/// expansion (see Expansion).
std::unique_ptr<ByteSource> open_rows(const std::filesystem::path& path, const RowKeys& keys);

/// Opens the module; returns "" or the reason why tables cannot be read.
std::string open_arrow();

}  // namespace lehr::data
