// The files that a path names: one file, those of a folder, or those that match a pattern.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace lehr::data {

/// Format of the files of a text source.
enum class TextKind {
  by_name,  ///< By extension: .jsonl, .ndjson and .json are JSON lines, .parquet and .arrow tables; others are text, in
            ///< folders only .txt and .text. All but tables may have .gz or .zst appended.
  text,
  rows,  ///< JSON lines, or tables by their extension.
};

/// A file, a folder or a shell pattern (* ? [...]). Of a folder, files with a matching extension are read recursively,
/// in order of paths, except names with a leading dot, and descriptions and caches of Hugging Face's data. Several
/// matches of a pattern are read like a folder of them; a single one, except a description, as if it were named. So are
/// several that end in the pattern's extension (*.log), under a kind other than by_name.
struct TextSource {
  std::filesystem::path path{};
  TextKind kind = TextKind::by_name;
  /// The key of the text in a row.
  std::string text_key = "text";
  /// The end of a document in a text file. "": the end of the file; "line": every line is a document; "blank_line": one
  /// or more blank lines; anything else is a separator, such as "<|endoftext|>". Empty documents are skipped.
  std::string split_documents{};
};

/// Returns the files of a source, sorted. Throws a usage error for a missing path, a pattern without a match, a folder
/// without a matching file or with the tables of several splits, and a link out of the folder (path_beneath).
std::vector<std::filesystem::path> list_files(const TextSource& source);

/// Returns whether there is such a file or folder, or a match if the path is a pattern.
bool is_there(const std::filesystem::path& path);

/// Returns whether `path` contains rows under this kind.
bool has_rows(const std::filesystem::path& path, TextKind kind);

}  // namespace lehr::data
