// The file and byte range of every tensor, planned before anything is written: every rank computes the same plan from
// the same list, and then writes its own ranges of shared files.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "lehr/state/safetensors_header.h"

namespace lehr::state {

/// Default maximum size of a file.
inline constexpr int64_t kDefaultMaxShardBytes = 5'000'000'000;

/// A file to write.
struct PlannedFile {
  std::string name;    ///< "model-00001-of-00002.safetensors"; may be in a subfolder, "blocks/0.safetensors".
  std::string header;  ///< The first bytes of the file.
  std::vector<TensorInfo> tensors;  ///< In file order.
  int64_t num_bytes = 0;            ///< Size of the whole file.
};

/// The position of a tensor.
struct PlannedTensor {
  size_t file = 0;     ///< Index in FilePlan::files.
  int64_t offset = 0;  ///< From the start of the file.
  int64_t num_bytes = 0;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
};

/// The plan of all files of a stem.
struct FilePlan {
  std::vector<PlannedFile> files;
  std::string index_name;   ///< "model.safetensors.index.json"; empty if there is a single file.
  std::string index;        ///< Content of the index.
  int64_t total_bytes = 0;  ///< Sum over all tensors.
  std::unordered_map<std::string, PlannedTensor> places;

  /// Returns the position of a tensor. Throws a usage error if the plan has no such tensor.
  const PlannedTensor& at(const std::string& name) const;
};

/// Plans `stem`.safetensors or, if the tensors take more than `max_shard_bytes`, the shards and index that Hugging
/// Face's libraries would write for the same list: the same names, splits and bytes. `tensors` has the global shapes in
/// the order of the model; byte ranges in it are ignored. Tensors are never split: one that is larger than a shard gets
/// a file of its own. Throws a usage error for duplicate names.
FilePlan plan_files(
    const std::string& stem,
    const std::vector<TensorInfo>& tensors,
    int64_t max_shard_bytes = kDefaultMaxShardBytes,
    const std::map<std::string, std::string>& metadata = {{"format", "pt"}});

/// A file name and the tensors of the file.
struct FileContents {
  std::string name;  ///< See PlannedFile::name.
  std::vector<TensorInfo> tensors;
};

/// Plans exactly these files, whatever their size, and an index of that stem, in the format of `plan_files`.
FilePlan plan_named_files(
    const std::string& stem,
    const std::vector<FileContents>& files,
    const std::map<std::string, std::string>& metadata = {{"format", "pt"}});

}  // namespace lehr::state
