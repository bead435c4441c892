// Readers of whole texts, split texts, and rows.
#include "lehr/data/corpus.h"

#include <simdjson.h>

#include <algorithm>
#include <utility>

#include "lehr/base/error.h"
#include "lehr/data/byte_source.h"
#include "lehr/data/rows.h"

namespace lehr::data {

/// The documents of one kind of file, in order.
class CorpusReader::FileReader {
 public:
  virtual ~FileReader() = default;
  /// Fills text and line; returns false at the end of the file.
  virtual bool next(Document& document) = 0;
};

namespace {

constexpr size_t kBlockBytes = size_t{1} << 18;

bool is_blank(std::string_view line) {
  return line.find_first_not_of(" \t\r") == std::string_view::npos;
}

/// Documents between separators; without a separator, the whole file.
class SeparatedText : public CorpusReader::FileReader {
 public:
  SeparatedText(const std::filesystem::path& path, std::string separator)
      : source_(open_bytes(path)), separator_(std::move(separator)) {}

  bool next(Document& document) override {
    while (read_one(document)) {
      if (!document.text.empty()) {
        return true;
      }
    }
    return false;
  }

 private:
  bool read_one(Document& document) {
    size_t scanned = position_;
    for (;;) {
      const size_t end = separator_.empty() ? std::string::npos : buffer_.find(separator_, scanned);
      if (end != std::string::npos || (at_end_ && position_ < buffer_.size())) {
        const size_t stop = std::min(end, buffer_.size());
        const size_t after = std::min(stop + separator_.size(), buffer_.size());
        document.line = line_;
        document.text.assign(buffer_, position_, stop - position_);
        line_ += std::count(
            buffer_.begin() + static_cast<std::ptrdiff_t>(position_),
            buffer_.begin() + static_cast<std::ptrdiff_t>(after),
            '\n');
        position_ = after;
        return true;
      }
      if (at_end_) {
        return false;
      }
      buffer_.erase(0, position_);
      position_ = 0;
      const size_t kept = buffer_.size();
      scanned = separator_.empty() || kept < separator_.size() ? 0 : kept - separator_.size() + 1;
      read_more(kept);
    }
  }

  void read_more(size_t kept) {
    const size_t block = std::max(kBlockBytes, kept);  // doubles, so that a large document is not copied many times
    buffer_.resize(kept + block);
    const int64_t got = source_->read(buffer_.data() + kept, static_cast<int64_t>(block));
    buffer_.resize(kept + static_cast<size_t>(got));
    at_end_ = got == 0;
    if (first_ && (at_end_ || buffer_.size() >= kByteOrderMark.size())) {
      first_ = false;
      position_ = std::string_view(buffer_).starts_with(kByteOrderMark) ? kByteOrderMark.size() : 0;
    }
  }

  std::unique_ptr<ByteSource> source_;
  std::string separator_;
  std::string buffer_;
  size_t position_ = 0;
  int64_t line_ = 1;
  bool at_end_ = false;
  bool first_ = true;
};

/// Each line, or each run of lines between blank ones, as a document.
class LinesOfText : public CorpusReader::FileReader {
 public:
  LinesOfText(const std::filesystem::path& path, bool paragraphs) : lines_(open_bytes(path)), paragraphs_(paragraphs) {}

  bool next(Document& document) override {
    document.text.clear();
    std::string_view line;
    while (lines_.next(line)) {
      line = without_byte_order_mark(line, lines_.line_number());
      if (is_blank(line)) {
        if (!document.text.empty()) {
          return true;
        }
        continue;
      }
      if (document.text.empty()) {
        document.line = lines_.line_number();
      } else {
        document.text += '\n';
      }
      document.text += line;
      if (!paragraphs_) {
        if (document.text.back() == '\r') {
          document.text.pop_back();
        }
        return true;
      }
    }
    return !document.text.empty();
  }

 private:
  LineReader lines_;
  bool paragraphs_;
};

/// The texts under one key of the rows.
class JsonLines : public CorpusReader::FileReader {
 public:
  JsonLines(const std::filesystem::path& path, std::string key, LoneSurrogates& lone)
      : name_(path.string()), lines_(open_rows(path, {.required = {key}})), key_(std::move(key)), lone_(lone) {}

  bool next(Document& document) override {
    std::string_view line;
    while (lines_.next(line)) {
      document.line = lines_.line_number();
      line = without_byte_order_mark(line, document.line);
      if (is_blank(line)) {
        continue;
      }
      padded_.assign(line);
      simdjson::dom::element value;
      auto error = parse(value);
      if (error == simdjson::STRING_ERROR && lone_.replace(padded_, name_, document.line)) {
        error = parse(value);
      }
      if (error != simdjson::SUCCESS) {
        require_utf8(line, name_, document.line);
        fail(
            "{}:{}: not valid JSON ({}). Every line must be one JSON object",
            name_,
            document.line,
            simdjson::error_message(error));
      }
      require(
          value.is_object(),
          "{}:{}: expected a JSON object on every line, as {{\"{}\": \"...\"}}",
          name_,
          document.line,
          key_);
      simdjson::dom::element text;
      require(
          value.at_key(key_).get(text) == simdjson::SUCCESS,
          "{}:{}: the object has no key \"{}\". text_key names the key of the text",
          name_,
          document.line,
          key_);
      std::string_view view;
      require(text.get(view) == simdjson::SUCCESS, "{}:{}: \"{}\" is not a string", name_, document.line, key_);
      if (!view.empty()) {
        document.text.assign(view);
        return true;
      }
    }
    return false;
  }

 private:
  simdjson::error_code parse(simdjson::dom::element& value) {
    padded_.reserve(padded_.size() + simdjson::SIMDJSON_PADDING);
    return parser_.parse(padded_.data(), padded_.size(), false).get(value);
  }

  std::string name_;
  LineReader lines_;
  std::string key_;
  LoneSurrogates& lone_;
  simdjson::dom::parser parser_;
  std::string padded_;
};

std::unique_ptr<CorpusReader::FileReader> open_file(
    const std::filesystem::path& path, const TextSource& source, LoneSurrogates& lone) {
  if (has_rows(path, source.kind)) {
    return std::make_unique<JsonLines>(path, source.text_key, lone);
  }
  if (source.split_documents == "line" || source.split_documents == "blank_line") {
    return std::make_unique<LinesOfText>(path, source.split_documents == "blank_line");
  }
  return std::make_unique<SeparatedText>(path, source.split_documents);
}

}  // namespace

void require_utf8(std::string_view text, const std::string& file, int64_t first_line) {
  if (simdjson::validate_utf8(text.data(), text.size())) {
    return;
  }
  require(
      first_line > 1 || !(text.starts_with("\xFF\xFE") || text.starts_with("\xFE\xFF")),
      "{}: is UTF-16. Convert the file: iconv -f UTF-16 -t UTF-8",
      file);
  // No multi-byte character contains a newline byte, so lines can be checked one by one.
  int64_t line = first_line;
  for (size_t begin = 0;; ++line) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    if (end == text.size() || !simdjson::validate_utf8(text.data() + begin, end - begin)) {
      break;
    }
    begin = end + 1;
  }
  fail("{}:{}: not valid UTF-8. Convert the file, for example with iconv -f ISO-8859-1 -t UTF-8", file, line);
}

CorpusReader::CorpusReader(std::vector<TextSource> sources) : sources_(std::move(sources)) {
  for (size_t i = 0; i < sources_.size(); ++i) {
    for (auto& file : list_files(sources_[i])) {
      std::error_code error;
      const auto bytes = std::filesystem::file_size(file, error);
      require(!error, "{}: cannot be read: {}", file.string(), error.message());
      items_.push_back({std::move(file), i, static_cast<int64_t>(bytes)});
      total_bytes_ += items_.back().bytes;
    }
  }
}

CorpusReader::~CorpusReader() = default;

std::optional<Document> CorpusReader::next() {
  for (Document document; next_item_ < items_.size();) {
    const Item& item = items_[next_item_];
    const TextSource& source = sources_[item.source];
    if (file_ == nullptr) {
      file_ = open_file(item.file, source, lone_surrogates_);
    }
    document.file = item.file.string();
    if (file_->next(document)) {
      require_utf8(document.text, document.file, document.line);
      return document;
    }
    file_ = nullptr;
    finished_bytes_ += item.bytes;
    ++next_item_;
  }
  return std::nullopt;
}

}  // namespace lehr::data
