// Shared code of the tests of this folder: a byte tokenizer, a temporary folder, error messages, and plans of batches.
#pragma once

#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include "lehr/base/error.h"
#include "lehr/data/loader.h"
#include "lehr/data/token_stream.h"
#include "lehr/data/tokenizer.h"
#include "test/base/temporary_folder.h"

namespace lehr::data {

/// Ids 0..255 are bytes, 256 ends a document; `shift` makes it another tokenizer.
class BytesForTests : public Tokenizer {
 public:
  explicit BytesForTests(int32_t shift = 0, bool has_eos = true) : shift_(shift), has_eos_(has_eos) {}
  std::vector<int32_t> encode(std::string_view text) const override {
    std::vector<int32_t> ids;
    for (const char c : text) {
      ids.push_back((static_cast<unsigned char>(c) + shift_) % 256);
    }
    return ids;
  }
  std::string decode(std::span<const int32_t> ids, bool) const override {
    std::string text;
    for (const int32_t id : ids) {
      text += id < 256 ? static_cast<char>((id + 256 - shift_) % 256) : '|';
    }
    return text;
  }
  int64_t vocab_size() const override { return 257; }
  std::optional<int32_t> eos_id() const override { return has_eos_ ? std::optional(256) : std::nullopt; }
  std::optional<int32_t> bos_id() const override { return std::nullopt; }
  std::optional<int32_t> pad_id() const override { return std::nullopt; }
  std::vector<std::filesystem::path> files() const override { return {}; }

 private:
  int32_t shift_;
  bool has_eos_;
};

/// Expects special tokens around a text: 1 before it, and 2 and the eos after it.
class SurroundedBytes : public BytesForTests {
 public:
  SpecialTokens special_tokens() const override { return {.before = {1}, .after = {2, 256}}; }
};

inline size_t num_files(const TemporaryFolder& folder) {
  return static_cast<size_t>(std::distance(std::filesystem::recursive_directory_iterator(folder.path()), {}));
}

inline std::filesystem::path write_file(const std::filesystem::path& path, std::string_view content) {
  std::filesystem::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary) << content;
  return path;
}

inline std::string read_file(const std::filesystem::path& path) {
  std::ifstream stream(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

/// The message of the usage error that `action` throws; "" if it throws none.
inline std::string usage_error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.kind() == ErrorKind::usage ? error.what() : "not a usage error";
  }
  return "";
}

inline TokenStream stream_of(const std::vector<std::vector<int32_t>>& documents, int64_t vocab_size = 1000) {
  TokenBuffer buffer("memory", vocab_size, 0);
  for (const auto& document : documents) {
    buffer.append(document);
  }
  return buffer.take();
}

/// The plan of one of `num_ranks` data-parallel ranks, which share a global batch evenly, in order.
inline BatchPlan batch_plan_of_rank(int64_t global_batch_size, int64_t rank, int64_t num_ranks, int64_t start = 0) {
  const int64_t local = global_batch_size / num_ranks;
  return {.global_batch_size = global_batch_size, .first_row = rank * local, .num_rows = local, .start = start};
}

inline std::filesystem::path repository(const std::string& path) {
  return std::filesystem::path(LEHR_SOURCE_DIR) / path;
}

}  // namespace lehr::data
