// Reads a page or a record batch at a time, and believes no number of a file.
#include "lehr/data/arrow_batches.h"

#include <arrow/ipc/reader.h>
#include <parquet/arrow/reader.h>
#include <parquet/file_reader.h>
#include <parquet/metadata.h>
#include <parquet/properties.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

#include "lehr/data/arrow_json.h"

namespace lehr::data {
namespace {

/// Few rows, because a row can be as long as a book.
constexpr int64_t kRowsOfParquetBatch = 64;
/// Of the columns in a message.
constexpr int kMostNames = 30;
/// Begins a file in Arrow's file format.
constexpr std::string_view kMagic = "ARROW1";

/// Returns the indices of the columns to read in `schema`. Throws a Problem if one is missing, ambiguous or of a type
/// without JSON.
std::vector<int> find_columns(const arrow::Schema& schema, const Columns& columns) {
  std::vector<int> found;
  for (const auto& [name, required] : columns) {
    const std::vector<int> places = schema.GetAllFieldIndices(name);
    if (places.size() > 1) {
      throw Problem("has " + std::to_string(places.size()) + " columns \"" + name + "\"");
    }
    if (!places.empty()) {
      const auto& type = *schema.field(places.front())->type();
      if (const auto* const unknown = without_json(type)) {
        throw Problem(
            "the column \"" + name + "\" has the type " + type.ToString() + ", and " + unknown->ToString() +
            " is not read");
      }
      found.push_back(places.front());
    } else if (required) {
      std::string names;
      for (int i = 0; i < std::min(schema.num_fields(), kMostNames); ++i) {
        names += (i == 0 ? "" : ", ") + schema.field(i)->name() + " (" + schema.field(i)->type()->name() + ")";
      }
      names += schema.num_fields() > kMostNames ? ", ..." : "";
      throw Problem(
          "has no column \"" + name +
          "\"; text_key, messages_key and other keys of the dataset name its "
          "columns, which are: " +
          names);
    }
  }
  return found;
}

class ParquetBatches : public Batches {
 public:
  ParquetBatches(std::shared_ptr<arrow::io::ReadableFile> file, const Columns& columns, arrow::MemoryPool* pool) {
    parquet::ReaderProperties properties(pool);
    properties.enable_buffered_stream();  // a page at a time, not a column of a row group
    properties.set_page_checksum_verification(true);
    parquet::ArrowReaderProperties how(/*use_threads=*/false);
    how.set_batch_size(kRowsOfParquetBatch);
    how.set_pre_buffer(false);
    how.set_arrow_extensions_enabled(true);
    const int64_t file_bytes = check(file->GetSize(), "");
    reader_ = check(
        parquet::arrow::FileReader::Make(pool, parquet::ParquetFileReader::Open(std::move(file), properties), how), "");
    const auto& described = *reader_->parquet_reader()->metadata();
    uint64_t rows = 0;  // which may wrap around
    int64_t unread = file_bytes;
    for (int group = 0; group < described.num_row_groups(); ++group) {
      const auto part = described.RowGroup(group);
      rows += static_cast<uint64_t>(part->num_rows());
      unread = without_chunks(*part, unread);
    }
    if (rows != static_cast<uint64_t>(described.num_rows())) {
      throw Problem(
          "is damaged: it should have " + std::to_string(described.num_rows()) +
          " rows, and its row groups have another number");
    }
    std::shared_ptr<arrow::Schema> schema;
    check(reader_->GetSchema(&schema), "its schema ");
    const auto& leaves = *described.schema();
    for (const int column : find_columns(*schema, columns)) {
      for (int leaf = 0; leaf < leaves.num_columns(); ++leaf) {
        if (leaves.GetColumnRoot(leaf)->name() == schema->field(column)->name()) {
          leaves_.push_back(leaf);
        }
      }
    }
  }

  std::shared_ptr<arrow::RecordBatch> next() override {
    for (; group_ < reader_->num_row_groups(); ++group_) {
      if (batches_ == nullptr) {
        batches_ = check(reader_->GetRecordBatchReader({group_}, leaves_), where());
        rows_ = 0;
      }
      std::shared_ptr<arrow::RecordBatch> batch;
      check(batches_->ReadNext(&batch), where());
      if (batch != nullptr) {
        rows_ += batch->num_rows();
        return batch;
      }
      batches_ = nullptr;
      const int64_t announced = reader_->parquet_reader()->metadata()->RowGroup(group_)->num_rows();
      if (rows_ != announced) {
        throw Problem(
            where() + "is damaged: it should have " + std::to_string(announced) + " rows, and has " +
            std::to_string(rows_));
      }
    }
    return nullptr;
  }

  std::string where() const override { return "row group " + std::to_string(group_) + " "; }

 private:
  // Returns `unread` minus the bytes of a row group's columns. If row groups could share bytes, a small file could hold
  // any number of pages to decompress.
  static int64_t without_chunks(const parquet::RowGroupMetaData& group, int64_t unread) {
    for (int column = 0; column < group.num_columns(); ++column) {
      const int64_t bytes = group.ColumnChunk(column)->total_compressed_size();
      if (bytes < 0 || bytes > unread) {
        throw Problem("is damaged: the columns of its row groups have more bytes than the file");
      }
      unread -= bytes;
    }
    return unread;
  }

  std::unique_ptr<parquet::arrow::FileReader> reader_;
  std::vector<int> leaves_;
  std::unique_ptr<arrow::RecordBatchReader> batches_;
  int group_ = 0;
  int64_t rows_ = 0;
};

/// Arrow's stream format, as Hugging Face's save_to_disk writes it, and its file format.
class ArrowBatches : public Batches {
 public:
  ArrowBatches(std::shared_ptr<arrow::io::ReadableFile> file, const Columns& columns, arrow::MemoryPool* pool)
      : file_(std::move(file)), size_(check(file_->GetSize(), "")) {
    auto options = arrow::ipc::IpcReadOptions::Defaults();
    options.memory_pool = pool;
    options.use_threads = false;
    int64_t begin = 0;
    if (starts_with(kMagic)) {
      // The file format is a stream and an index. Read as a stream, no batch is read twice, whatever the index says.
      batches_ = check(arrow::ipc::RecordBatchFileReader::Open(file_, options), "")->num_record_batches();
      begin = 8;  // kMagic, padded
    } else {
      require_end();
    }
    check(file_->Seek(begin), "");
    const auto schema = check(arrow::ipc::RecordBatchStreamReader::Open(file_, options), "")->schema();
    options.included_fields = find_columns(*schema, columns);
    check(file_->Seek(begin), "");
    stream_ = check(arrow::ipc::RecordBatchStreamReader::Open(file_, options), "");
  }

  std::shared_ptr<arrow::RecordBatch> next() override {
    std::shared_ptr<arrow::RecordBatch> batch;
    ++batch_;
    check(stream_->ReadNext(&batch), where());
    if (batch == nullptr && batches_ && batch_ != *batches_) {
      throw Problem(
          "is damaged: it should have " + std::to_string(*batches_) + " record batches, and has " +
          std::to_string(batch_));
    }
    if (batch == nullptr && !batches_ && check(file_->Tell(), "") != size_) {
      throw Problem("is damaged: it continues after the end of its stream");
    }
    return batch;
  }

  std::string where() const override { return "record batch " + std::to_string(batch_) + " "; }

 private:
  bool starts_with(std::string_view magic) {
    const auto bytes = check(file_->ReadAt(0, static_cast<int64_t>(magic.size())), "");
    return std::string_view(*bytes) == magic;
  }

  // Without an end-of-stream marker, a stream that was truncated between two batches would look complete.
  void require_end() {
    constexpr std::array<char, 8> kEnd{'\xFF', '\xFF', '\xFF', '\xFF', 0, 0, 0, 0};
    const auto bytes = check(file_->ReadAt(std::max<int64_t>(0, size_ - 8), 8), "");
    if (std::string_view(*bytes) != std::string_view(kEnd.data(), kEnd.size())) {
      throw Problem("is truncated, or not an Arrow file: it does not end as Arrow's streams and files do");
    }
  }

  std::shared_ptr<arrow::io::ReadableFile> file_;
  int64_t size_;
  std::optional<int> batches_;  // that the index of the file format lists
  std::shared_ptr<arrow::ipc::RecordBatchStreamReader> stream_;
  int batch_ = -1;
};

}  // namespace

void check(const arrow::Status& status, const std::string& where) {
  if (status.ok()) {
    return;
  }
  std::string text = status.message();
  std::replace(text.begin(), text.end(), '\n', ' ');
  const char* const what = status.IsOutOfMemory()      ? "needs more than 4 GiB of memory at a time"
                           : status.IsNotImplemented() ? "cannot be read by this build of Apache Arrow"
                                                       : "is damaged";
  throw Problem(where + what + " (" + text + ")");
}

std::unique_ptr<Batches> open_batches(
    std::shared_ptr<arrow::io::ReadableFile> file, bool parquet, const Columns& columns, arrow::MemoryPool* pool) {
  if (parquet) {
    return std::make_unique<ParquetBatches>(std::move(file), columns, pool);
  }
  return std::make_unique<ArrowBatches>(std::move(file), columns, pool);
}

}  // namespace lehr::data
