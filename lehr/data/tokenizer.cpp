// Finds out which tokenizer a name means, and which files belong to it.
#include "lehr/data/tokenizer.h"

#include <fstream>

#include "lehr/base/error.h"
#include "lehr/data/tokenizer_file.h"
#include "lehr/data/tokenizer_kinds.h"

namespace lehr::data {
namespace {

namespace fs = std::filesystem;

/// `folder/name`, or `folder/name.gz`, whichever exists.
std::optional<fs::path> find_file(const fs::path& folder, const char* name) {
  for (const char* ending : {"", ".gz"}) {
    fs::path path = folder / (std::string(name) + ending);
    if (fs::is_regular_file(path)) {
      return path;
    }
  }
  return std::nullopt;
}

}  // namespace

std::unique_ptr<Tokenizer> load_tokenizer(const std::string& what) {
  if (what == "byte") {
    return make_byte_tokenizer();
  }
  const fs::path path(what);
  if (!fs::is_directory(path)) {
    require(
        fs::exists(path),
        "tokenizer \"{}\": no such file or folder; expected \"byte\", a folder with tokenizer.json, or such a file",
        what);
    return make_bpe_tokenizer(path, std::nullopt, {path});
  }
  const std::optional<fs::path> file = find_file(path, "tokenizer.json");
  require(file.has_value(), "tokenizer \"{}\": the folder holds no tokenizer.json (nor tokenizer.json.gz)", what);
  std::vector<fs::path> files;
  for (const char* name :
       {"tokenizer.json",
        "tokenizer_config.json",
        "special_tokens_map.json",
        "added_tokens.json",
        "vocab.json",
        "merges.txt",
        "chat_template.jinja",
        "chat_template.json"}) {
    if (const auto found = find_file(path, name)) {
      files.push_back(*found);
    }
  }
  return make_bpe_tokenizer(*file, find_file(path, "tokenizer_config.json"), std::move(files));
}

void export_tokenizer_files(const Tokenizer& tokenizer, const std::filesystem::path& folder) {
  for (const fs::path& file : tokenizer.files()) {
    const fs::path target = folder / (file.extension() == ".gz" ? file.stem() : file.filename());
    const std::string content = read_whole_file(file);
    std::ofstream out(target, std::ios::binary);
    out.write(content.data(), static_cast<std::streamsize>(content.size()));
    out.close();
    if (!out) {
      fail_runtime("{}: cannot be written", target.string());
    }
  }
}

}  // namespace lehr::data
