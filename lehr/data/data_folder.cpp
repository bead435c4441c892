#include "lehr/data/data_folder.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <map>
#include <string_view>

#include "lehr/base/error.h"
#include "lehr/base/open_file.h"
#include "lehr/config/json.h"
#include "lehr/data/rows.h"

namespace lehr::data {
namespace {

constexpr std::array<std::string_view, 4> kDescriptions{
    "dataset_dict.json", "dataset_info.json", "dataset_infos.json", "state.json"};

bool is_digits(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
}

/// Returns "train" of "train-00000-of-00003" and "train-00000-of-00003-5f0c"; "" if the name is not of this kind.
std::string_view before_shard_number(std::string_view stem) {
  constexpr std::string_view kOf = "-of-";
  const size_t of = stem.rfind(kOf);
  const size_t dash = of == std::string_view::npos || of == 0 ? of : stem.rfind('-', of - 1);
  if (dash == std::string_view::npos || dash == 0) {
    return {};
  }
  const std::string_view count = stem.substr(of + kOf.size());
  const bool numbers = is_digits(stem.substr(dash + 1, of - dash - 1)) && is_digits(count.substr(0, count.find('-')));
  return numbers ? stem.substr(0, dash) : std::string_view();
}

/// Returns the word for a split in a name such as "wiki-train.v2"; "" if there is none.
std::string_view split_word(std::string_view name) {
  static const std::set<std::string_view> kWords{
      "train", "training", "validation", "valid", "dev", "val", "test", "testing", "eval", "evaluation"};
  constexpr std::string_view kBetween = "-._ 0123456789";
  for (size_t begin = 0; begin < name.size();) {
    const size_t end = std::min(name.find_first_of(kBetween, begin), name.size());
    if (const auto word = name.substr(begin, end - begin); kWords.contains(word)) {
      return word;
    }
    begin = end + 1;
  }
  return {};
}

/// Returns the names of the tables that the state.json of a folder lists; nothing if it has none of save_to_disk.
std::optional<std::set<std::string>> saved_tables(
    const std::filesystem::path& root, const std::filesystem::path& below) {
  const auto folder = root / below;
  const auto state = folder / "state.json";
  std::error_code unreadable;
  if (!std::filesystem::exists(state, unreadable)) {
    return std::nullopt;
  }
  const Node described = parse_json_file(path_beneath(root, below / "state.json"));
  const Node* const listed = described.is_table() ? described.find("_data_files") : nullptr;
  if (listed == nullptr) {
    return std::nullopt;  // some other state
  }
  const Node* const selected = described.find("_indices_data_files");
  require(
      selected == nullptr || selected->is_null() || selected->size() == 0,
      "{}: the rows are a selection from the tables; store them with a newer version of datasets, or after "
      "flatten_indices()",
      state.string());
  std::set<std::string> names;
  for (const Node& file : listed->items()) {
    const std::string& name = file.at("filename").as_string();
    require(
        std::filesystem::path(name).filename() == name && std::filesystem::exists(folder / name, unreadable),
        "{}: lists {}, which is not in the folder",
        state.string(),
        name);
    names.insert(name);
  }
  return names;
}

}  // namespace

bool is_description(const std::filesystem::path& file) {
  const std::string name = file.filename().string();
  if (name.starts_with("cache-") && file.extension() == ".arrow") {
    return true;
  }
  return std::find(kDescriptions.begin(), kDescriptions.end(), name) != kDescriptions.end();
}

bool SavedTables::leave_out(const std::filesystem::path& root, const std::filesystem::path& below) {
  if (!is_table(below)) {
    return false;
  }
  const auto folder = root / below.parent_path();
  auto found = listed_.find(folder);
  if (found == listed_.end()) {
    found = listed_.emplace(folder, saved_tables(root, below.parent_path())).first;
  }
  const auto& names = found->second;
  return names && !names->contains(below.filename().string());
}

std::string split_of(const std::filesystem::path& below) {
  const std::string stem = below.stem().string();
  const auto shard = before_shard_number(stem);
  if (!shard.empty() && shard != "data") {
    return std::string(shard);
  }
  for (auto folder = below.parent_path(); !folder.empty(); folder = folder.parent_path()) {
    if (const auto word = split_word(folder.filename().string()); !word.empty()) {
      return std::string(word);
    }
  }
  return std::string(split_word(stem));
}

void require_one_split(const std::filesystem::path& folder, const std::vector<std::filesystem::path>& files) {
  const bool named_by_folder = std::filesystem::exists(folder / "dataset_dict.json");
  std::map<std::string, std::filesystem::path> paths;  // by split
  for (const auto& file : files) {
    const auto below = file.lexically_relative(folder);
    if (!is_table(file)) {
      continue;
    }
    const std::string split = named_by_folder ? below.begin()->string() : split_of(below);
    const auto parent = file.parent_path();
    const bool sharded = !named_by_folder && below.stem().string().starts_with(split + "-");
    paths.emplace(
        split,
        sharded                   ? parent / (split + "-*" + file.extension().string())
        : below.has_parent_path() ? parent
                                  : file);
  }
  paths.erase("");
  if (paths.size() > 1) {
    std::vector<std::string> splits;
    for (const auto& [split, path] : paths) {
      splits.push_back(split);
    }
    const auto shown = paths.contains("train") ? paths.find("train") : paths.begin();
    fail(
        "{}: has the splits {}, of which a dataset is one; name its files, for example path = \"{}\"",
        folder.string(),
        fmt::join(splits, ", "),
        shown->second.string());
  }
}

}  // namespace lehr::data
