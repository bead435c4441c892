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

/// Returns whether the name says that the file is a table: .parquet or .arrow.
bool is_table(const std::filesystem::path& path);

/// Opens `path` as JSON lines: a table by the module liblehr_arrow.so, any other file by open_bytes. Row n of a table
/// is line n, an object of its columns among `keys`; its nulls are null in it, and absent from objects within it. At a
/// time, a page of a Parquet file or a record batch of an Arrow file is in memory.
///
/// Throws usage errors that name the file: one that says how to get Apache Arrow if the module cannot be opened; a
/// missing column, with the names of those there are; damage, with the row group or record batch; and expansion without
/// bound (see Expansion).
std::unique_ptr<ByteSource> open_rows(const std::filesystem::path& path, const RowKeys& keys);

/// Opens the module; returns "" or the reason why tables cannot be read.
std::string open_arrow();

}  // namespace lehr::data
