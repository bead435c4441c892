// The layout of datasets that Hugging Face's `datasets` stores in folders: descriptions, shards and splits.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace lehr::data {

/// Returns whether the name is that of a description, which is not data: dataset_info.json, state.json, ...;
/// or of a cache that map() of `datasets` leaves: cache-*.arrow.
bool is_description(const std::filesystem::path& file);

/// The tables that the state.json files of save_to_disk list. Other tables in such a folder are leftovers or caches.
class SavedTables {
 public:
  /// Returns whether `root / below` is a table that the state.json beside it does not list. Throws a usage error if a
  /// listed table is missing, if the rows are a selection from the tables (save_to_disk of `datasets` before 2.0), or
  /// if state.json is a link out of `root` (path_beneath).
  bool leave_out(const std::filesystem::path& root, const std::filesystem::path& below);

 private:
  std::map<std::filesystem::path, std::optional<std::set<std::string>>> listed_;  // by folder
};

/// Returns the split that the path of a table below its dataset's folder names: "train" of
/// data/train-00000-of-00003.parquet, train/data-00000-of-00001.arrow, default/train/0000.parquet and train.parquet.
/// Empty if it names none.
std::string split_of(const std::filesystem::path& below);

/// Throws a usage error that names the splits unless the tables among the files of a folder are of one split.
void require_one_split(const std::filesystem::path& folder, const std::vector<std::filesystem::path>& files);

}  // namespace lehr::data
