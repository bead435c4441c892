// Reader of all tensors of a model (or optimizer) by name, from one file or many.
#pragma once

#include <filesystem>
#include <string>
#include <unordered_map>
#include <vector>

#include "lehr/state/quantized.h"
#include "lehr/state/safetensors.h"

namespace lehr::state {

/// Reads files of Hugging Face's libraries: `model.safetensors`, or `model.safetensors.index.json` and its shards.
/// Quantized tensors (quantized.h) appear as the plain ones that they stand for, in bfloat16, in place of the two
/// stored ones. Thread-safe.
class WeightReader {
 public:
  /// `path` is a folder that contains files of `stem` ("model", "optimizer"), or one safetensors or index file. Opens
  /// every file and checks that index and files agree. Throws usage errors that name the file and the tensor.
  explicit WeightReader(
      const std::filesystem::path& path, const std::string& stem = "model", Reading reading = Reading::again);

  /// Returns whether a folder contains files of that stem.
  static bool exists(const std::filesystem::path& folder, const std::string& stem = "model");

  /// Returns the path given to the constructor.
  const std::filesystem::path& path() const { return path_; }
  /// Returns all names, file by file.
  const std::vector<std::string>& names() const { return names_; }
  bool has(const std::string& name) const { return file_of_.contains(name) || quantized_.contains(name); }
  /// Returns a tensor's entry. Throws a usage error if there is no such tensor.
  const TensorInfo& info(const std::string& name) const;
  /// Like SafetensorsFile::tensor: read-only memory of the file. A quantized tensor is computed, in bfloat16.
  at::Tensor tensor(const std::string& name) const;
  /// Like SafetensorsFile::rows.
  at::Tensor rows(const std::string& name, int64_t begin, int64_t end) const;
  /// Returns a region of a tensor, as `tensor` does.
  at::Tensor region(const std::string& name, const Box& box) const;
  /// Copies a region into `target`, of any dtype and device and of its shape. A quantized tensor is computed in the
  /// target's dtype; of experts, one at a time.
  void copy_region(const std::string& name, const Box& box, const at::Tensor& target) const;
  /// Returns the quantized tensors, by the name of the plain one.
  const std::unordered_map<std::string, QuantizedTensor>& quantized() const { return quantized_; }
  /// Returns the bytes of all tensors together, as they are stored.
  int64_t total_bytes() const { return total_bytes_; }
  const std::vector<SafetensorsFile>& files() const { return files_; }

 private:
  void open_index(const std::filesystem::path& index);
  void finish();
  const SafetensorsFile& file_of(const std::string& name) const;
  void replace_quantized();
  FileOf stored_files() const;

  std::filesystem::path path_;
  Reading reading_;
  std::vector<SafetensorsFile> files_;
  std::vector<std::string> names_;
  std::unordered_map<std::string, size_t> file_of_;  // of tensors that are not part of quantized ones
  std::unordered_map<std::string, QuantizedTensor> quantized_;
  std::unordered_map<std::string, size_t> quantized_file_of_;  // of the stored tensors of those
  int64_t total_bytes_ = 0;
};

}  // namespace lehr::state
