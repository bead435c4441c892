// All tensors of a model (or of an optimizer) by name, whether one file holds them or many.
#pragma once

#include <filesystem>
#include <string>
#include <unordered_map>
#include <vector>

#include "lehr/state/safetensors.h"

namespace lehr::state {

/// Reads what Hugging Face's libraries write: `model.safetensors`, or `model.safetensors.index.json` with the shards
/// that it names. Safe to use from many threads.
class WeightReader {
 public:
  /// `path` is a folder, in which `stem` is looked for ("model", "optimizer"), or one safetensors or index file. Opens
  /// every file and checks that index and files agree. Throws usage errors that name the file and the tensor.
  explicit WeightReader(
      const std::filesystem::path& path, const std::string& stem = "model", Reading reading = Reading::again);

  /// Whether a folder holds files of that stem.
  static bool exists(const std::filesystem::path& folder, const std::string& stem = "model");

  /// What was given to the constructor.
  const std::filesystem::path& path() const { return path_; }
  /// All names, file by file.
  const std::vector<std::string>& names() const { return names_; }
  bool has(const std::string& name) const { return file_of_.count(name) != 0; }
  /// Throws a usage error if there is no such tensor.
  const TensorInfo& info(const std::string& name) const;
  /// As SafetensorsFile::tensor: read-only memory of the file.
  at::Tensor tensor(const std::string& name) const;
  /// As SafetensorsFile::rows.
  at::Tensor rows(const std::string& name, int64_t begin, int64_t end) const;
  /// As SafetensorsFile::copy_rows.
  void copy_rows(const std::string& name, int64_t begin, int64_t end, const at::Tensor& target) const;
  /// Of all tensors together.
  int64_t total_bytes() const { return total_bytes_; }
  const std::vector<SafetensorsFile>& files() const { return files_; }

 private:
  void open_index(const std::filesystem::path& index);
  void finish();
  const SafetensorsFile& file_of(const std::string& name) const;

  std::filesystem::path path_;
  Reading reading_;
  std::vector<SafetensorsFile> files_;
  std::vector<std::string> names_;
  std::unordered_map<std::string, size_t> file_of_;
  int64_t total_bytes_ = 0;
};

}  // namespace lehr::state
