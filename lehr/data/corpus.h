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
#include "lehr/data/text_source.h"

namespace lehr::data {

/// A document, and the position of its start, for messages: a line, or the row of a table.
struct Document {
  std::string text{};
  std::string file{};
  int64_t line = 1;
};

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
  /// Returns the lone surrogates that were replaced in the documents so far.
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
