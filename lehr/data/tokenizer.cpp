// Selects a tokenizer by name or path, and finds its files.
#include "lehr/data/tokenizer.h"

#include "lehr/base/error.h"
#include "lehr/data/tokenizer_file.h"
#include "lehr/data/tokenizer_kinds.h"

namespace lehr::data {

namespace fs = std::filesystem;

namespace {
// The files of a tokenizer in a model's folder.
std::vector<fs::path> files_of(const fs::path& folder) {
  std::vector<fs::path> files;
  for (const char* name :
       {"tokenizer.json",
        kTokenizerConfigFile,
        kSpecialTokensFile,
        "added_tokens.json",
        "vocab.json",
        "merges.txt",
        "chat_template.jinja",
        "chat_template.json"}) {
    if (const auto found = find_file(folder, name)) {
      files.push_back(*found);
    }
  }
  return files;
}
}  // namespace

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
    std::vector<fs::path> files = is_tokenizer_file(path) ? files_of(path.parent_path()) : std::vector{path};
    files.front() = path;  // of tokenizer.json and tokenizer.json.gz, the one that was named
    return make_bpe_tokenizer(path, std::move(files));
  }
  const std::optional<fs::path> file = find_file(path, "tokenizer.json");
  if (!file) {
    fail("{}: {}: the folder has no tokenizer.json (nor tokenizer.json.gz)", subject, what);
  }
  return make_bpe_tokenizer(*file, files_of(path));
}

std::vector<std::vector<int32_t>> Tokenizer::encode_parts(std::string_view text, std::span<const size_t> cuts) const {
  return encode_each_part(text, cuts, [this](std::string_view part) { return encode(part); });
}

std::vector<int32_t> Tokenizer::encode_word(std::string_view word) const {
  return encode(word.empty() || word.front() == ' ' ? std::string(word) : ' ' + std::string(word));
}

std::vector<int32_t> SpecialTokens::around(std::span<const int32_t> ids) const {
  std::vector<int32_t> all(before);
  all.insert(all.end(), ids.begin(), ids.end());
  all.insert(all.end(), after.begin(), after.end());
  return all;
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
