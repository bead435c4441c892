// Documents of text from files and folders, one after another, in bounded memory.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lehr::data {

enum class TextKind {
  by_name,  ///< .jsonl, .ndjson and .json are JSON lines, anything else is text; also with .gz or .zst behind.
  text,
  jsonl,
};

/// Where text comes from: a file, or a folder, of which all files with a fitting name are read, those of its folders
/// included, in the order of their paths. Names that start with a dot are passed over.
struct TextSource {
  std::filesystem::path path{};
  TextKind kind = TextKind::by_name;
  /// The key of a JSON line that holds the text.
  std::string text_key = "text";
  /// What ends a document in a text file. "": the end of the file; "line": every line is a document; "blank_line": one
  /// or more blank lines; anything else is a separator, such as "<|endoftext|>". Empty documents are passed over.
  std::string split_documents{};
};

/// A document, and where it began, for messages.
struct Document {
  std::string text{};
  std::string file{};
  int64_t line = 1;
};

/// The files of a source, sorted. A missing path, or a folder without a file that fits, is a usage error.
std::vector<std::filesystem::path> list_files(const TextSource& source);

/// Whether `path` holds JSON lines under this kind.
bool is_jsonl(const std::filesystem::path& path, TextKind kind);

/// Throws a usage error with file and line unless `text` is valid UTF-8.
void require_utf8(std::string_view text, const std::string& file, int64_t first_line);

/// Reads the documents of sources in order. Bytes that are no UTF-8 and lines that are no JSON object with the key are
/// usage errors with file and line; a byte-order mark at the start of a file is dropped.
class CorpusReader {
 public:
  explicit CorpusReader(std::vector<TextSource> sources);
  ~CorpusReader();

  /// The next document; nothing at the end.
  std::optional<Document> next();

  /// Size of all files, and of those that were read to the end, in bytes on disk.
  int64_t total_bytes() const { return total_bytes_; }
  int64_t finished_bytes() const { return finished_bytes_; }

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
  int64_t total_bytes_ = 0;
  int64_t finished_bytes_ = 0;
};

}  // namespace lehr::data
