// Documents of text from files and folders, read one after another in bounded memory.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lehr/data/lone_surrogates.h"

namespace lehr::data {

enum class TextKind {
  by_name,  ///< By extension: .jsonl, .ndjson and .json are JSON lines, others are text; also with .gz or .zst
            ///< appended.
  text,
  jsonl,
};

/// A file, or a folder, of which all files with a matching name are read recursively in the order of their paths. Names
/// that start with a dot are skipped.
struct TextSource {
  std::filesystem::path path{};
  TextKind kind = TextKind::by_name;
  /// The key of the text in a JSON line.
  std::string text_key = "text";
  /// The end of a document in a text file. "": the end of the file; "line": every line is a document; "blank_line": one
  /// or more blank lines; anything else is a separator, such as "<|endoftext|>". Empty documents are skipped.
  std::string split_documents{};
};

/// A document, and the position of its start, for messages.
struct Document {
  std::string text{};
  std::string file{};
  int64_t line = 1;
};

/// Returns the files of a source, sorted. Throws a usage error for a missing path, a folder without a matching file,
/// and a link out of the folder (path_beneath).
std::vector<std::filesystem::path> list_files(const TextSource& source);

/// Returns whether `path` contains JSON lines under this kind.
bool is_jsonl(const std::filesystem::path& path, TextKind kind);

/// Throws a usage error with file and line unless `text` is valid UTF-8.
void require_utf8(std::string_view text, const std::string& file, int64_t first_line);

/// Reads the documents of sources in order. Invalid UTF-8 and lines that are not a JSON object with the key are usage
/// errors with file and line; a byte-order mark at the start of a file is skipped, and half a surrogate pair in JSON is
/// read as U+FFFD.
class CorpusReader {
 public:
  explicit CorpusReader(std::vector<TextSource> sources);
  ~CorpusReader();

  /// Returns the next document; nothing at the end.
  std::optional<Document> next();

  /// Return the size of all files, and of the files read completely, in bytes on disk.
  int64_t total_bytes() const { return total_bytes_; }
  int64_t finished_bytes() const { return finished_bytes_; }
  /// Returns what was replaced in the documents so far.
  const LoneSurrogates& lone_surrogates() const { return lone_surrogates_; }

  class FileReader;  ///< The documents of one file.

 private:
  struct Item {
    std::filesystem::path file;
    size_t source;
    int64_t bytes;
  };
  std::vector<TextSource> sources_;
  std::vector<Item> items_;
  size_t next_item_ = 0;
  std::unique_ptr<FileReader> file_;
  LoneSurrogates lone_surrogates_;
  int64_t total_bytes_ = 0;
  int64_t finished_bytes_ = 0;
};

}  // namespace lehr::data
