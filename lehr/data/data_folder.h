// The layout of data sets that Hugging Face's `datasets` stores in folders: descriptions, shards and splits.
#pragma once

#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace lehr::data {

/// Returns whether the name is that of a description, which is not data: dataset_info.json, state.json, ...
bool is_description(const std::filesystem::path& file);

/// Returns the names of the tables that the state.json of a folder lists, as save_to_disk writes it; other tables in
/// the folder are remains or caches. Nothing if there is no such file. Throws a usage error if a listed table is
/// missing, or if the rows are a selection from the tables (save_to_disk of `datasets` before 2.0).
std::optional<std::set<std::string>> saved_tables(const std::filesystem::path& folder);

/// Returns the split that the path of a table below its data set's folder names: "train" of
/// data/train-00000-of-00003.parquet, train/data-00000-of-00001.arrow, default/train/0000.parquet and train.parquet.
/// Empty if it names none.
std::string split_of(const std::filesystem::path& below);

/// Throws a usage error that names the splits unless the tables among the files of a folder are of one split.
void require_one_split(const std::filesystem::path& folder, const std::vector<std::filesystem::path>& files);

}  // namespace lehr::data
