// Selects a tokenizer by name or path, and finds its files.
#include "lehr/data/tokenizer.h"

#include "lehr/base/error.h"
#include "lehr/data/tokenizer_file.h"
#include "lehr/data/tokenizer_kinds.h"

namespace lehr::data {

namespace fs = std::filesystem;

std::unique_ptr<Tokenizer> load_tokenizer(const std::string& what, const std::string& subject) {
  if (what == "byte") {
    return make_byte_tokenizer();
  }
  const fs::path path(what);
  if (!fs::is_directory(path)) {
    require(
        fs::exists(path),
        "{}: {}: no such file or folder; expected \"byte\", a folder with tokenizer.json, or a tokenizer.json",
        subject,
        what);
    return make_bpe_tokenizer(path, std::nullopt, {path});
  }
  const std::optional<fs::path> file = find_file(path, "tokenizer.json");
  if (!file) {
    fail("{}: {}: the folder has no tokenizer.json (nor tokenizer.json.gz)", subject, what);
  }
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

std::vector<std::pair<std::string, std::string>> tokenizer_file_contents(const Tokenizer& tokenizer) {
  std::vector<std::pair<std::string, std::string>> contents;
  for (const fs::path& file : tokenizer.files()) {
    const fs::path name = file.extension() == ".gz" ? file.stem() : file.filename();
    contents.emplace_back(name.string(), read_whole_file(file));
  }
  return contents;
}

}  // namespace lehr::data
