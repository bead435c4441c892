// Reader of conversation files: JSON lines, or one JSON list.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lehr/data/chat_template.h"
#include "lehr/data/data_config.h"
#include "lehr/data/lone_surrogates.h"
#include "lehr/data/rows.h"

namespace lehr::data {

/// The text of one JSON object, and its position as "file:line"; in a table the line is the row.
struct ChatRow {
  std::string text;
  std::string file;
  int64_t line = 1;
  std::string where() const { return fmt::format("{}:{}", file, line); }
};

/// Reads the objects of a path (see TextKind::rows), in order; .gz and .zst are decompressed. A file whose first
/// character is '[' is one list of objects; otherwise every line, or row of a table, is an object.
class ChatRowReader {
 public:
  /// `columns` names the columns of tables that are read.
  explicit ChatRowReader(const DatasetConfig& columns);
  ~ChatRowReader();

  /// Returns the next object; nothing at the end. Throws a usage error that names file and line for invalid UTF-8 and
  /// for an unterminated list.
  std::optional<ChatRow> next();

  /// Returns the lone surrogates that were replaced in the objects so far.
  const LoneSurrogates& lone_surrogates() const { return lone_surrogates_; }

 private:
  class File;
  RowKeys keys_;
  std::vector<std::filesystem::path> files_;
  size_t next_file_ = 0;
  std::unique_ptr<File> file_;
  LoneSurrogates lone_surrogates_;
};

/// Converts an object to a conversation (see ConversationEncoder): its messages under `messages_key`, or a question and
/// an answer under the keys that the config names. Messages may be ShareGPT's, {"from": "human", "value": "..."}, and
/// are then also found under "conversations", with a "system" beside them. Throws a usage error that names the key,
/// without the position.
ChatJson conversation_of(const ChatRow& row, const DatasetConfig& columns);

}  // namespace lehr::data
