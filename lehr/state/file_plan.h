// Which tensor goes to which byte of which file, decided before anything is written: from the same list every rank
// makes the same plan, and each then writes its own ranges of the same files.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "lehr/state/safetensors_header.h"

namespace lehr::state {

/// Largest size of a file unless a caller says otherwise.
inline constexpr int64_t kDefaultMaxShardBytes = 5'000'000'000;

/// A file to be written.
struct PlannedFile {
  std::string name;    ///< "model-00001-of-00002.safetensors"; may be in a folder below, "blocks/0.safetensors".
  std::string header;  ///< The first bytes of the file.
  std::vector<TensorInfo> tensors;  ///< In the order of the file.
  int64_t num_bytes = 0;            ///< Of the whole file.
};

/// The place of a tensor.
struct PlannedTensor {
  size_t file = 0;     ///< Of FilePlan::files.
  int64_t offset = 0;  ///< From the beginning of the file.
  int64_t num_bytes = 0;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
};

/// All files of a stem.
struct FilePlan {
  std::vector<PlannedFile> files;
  std::string index_name;   ///< "model.safetensors.index.json"; empty where one file of that stem holds all.
  std::string index;        ///< Content of the index.
  int64_t total_bytes = 0;  ///< Of all tensors.
  std::unordered_map<std::string, PlannedTensor> places;

  /// Throws a usage error if the plan has no such tensor.
  const PlannedTensor& at(const std::string& name) const;
};

/// Plans `stem`.safetensors or, where the tensors take more than `max_shard_bytes`, the shards and the index that
/// Hugging Face's libraries would write for the same list: the same names, borders and bytes. `tensors` has the global
/// shapes in the order of the model; the byte ranges in it are not read. No tensor is cut: one that is larger than a
/// shard has a file of its own. Throws a usage error for names that occur twice.
FilePlan plan_files(
    const std::string& stem,
    const std::vector<TensorInfo>& tensors,
    int64_t max_shard_bytes = kDefaultMaxShardBytes,
    const std::map<std::string, std::string>& metadata = {{"format", "pt"}});

/// A file by its name, and what it is to hold.
struct FileContents {
  std::string name;  ///< As PlannedFile::name.
  std::vector<TensorInfo> tensors;
};

/// Plans these files, whatever their size, and an index of that stem, as `plan_files` does otherwise.
FilePlan plan_named_files(
    const std::string& stem,
    const std::vector<FileContents>& files,
    const std::map<std::string, std::string>& metadata = {{"format", "pt"}});

}  // namespace lehr::state
