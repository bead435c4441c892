#include "lehr/data/tokenizer_file.h"

#include <algorithm>

#include "lehr/base/error.h"
#include "lehr/base/open_file.h"
#include "lehr/data/byte_source.h"

namespace lehr::data {

std::string read_whole_file(const std::filesystem::path& path) {
  require(!std::filesystem::is_directory(path), "{}: is a folder, expected a file", path.string());
  const auto source = open_bytes(path);
  std::string content;
  size_t size = 0;
  while (true) {
    content.resize(std::max<size_t>(1 << 20, size * 2));
    while (size < content.size()) {
      const int64_t got = source->read(content.data() + size, static_cast<int64_t>(content.size() - size));
      if (got == 0) {
        content.resize(size);
        return content;
      }
      size += static_cast<size_t>(got);
    }
  }
}

bool is_tokenizer_file(const std::filesystem::path& file) {
  return file.filename() == "tokenizer.json" || file.filename() == "tokenizer.json.gz";
}

std::optional<std::filesystem::path> find_file(const std::filesystem::path& folder, const char* name) {
  for (const char* ending : {"", ".gz"}) {
    const std::filesystem::path file = std::string(name) + ending;
    if (std::filesystem::is_regular_file(folder / file)) {
      return path_beneath(folder, file);
    }
  }
  return std::nullopt;
}

}  // namespace lehr::data
