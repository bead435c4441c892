// Reads a safetensors file: opening costs the header only, and a tensor is read when it is used.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "lehr/base/file.h"
#include "lehr/base/torch.h"
#include "lehr/state/input_file.h"
#include "lehr/state/safetensors_header.h"

namespace lehr::state {

/// One file. Copies share the map. Safe to use from many threads.
class SafetensorsFile {
 public:
  /// Opens the file and checks everything that its header says; what passes can be read. Throws usage errors that name
  /// the file and the tensor.
  explicit SafetensorsFile(std::filesystem::path path, Reading reading = Reading::again);

  const std::filesystem::path& path() const { return path_; }
  /// All tensors in the order of the file.
  const std::vector<TensorInfo>& tensors() const { return header_.tensors; }
  const std::map<std::string, std::string>& metadata() const { return header_.metadata; }

  bool has(const std::string& name) const { return index_.count(name) != 0; }
  /// Throws a usage error if there is no such tensor.
  const TensorInfo& info(const std::string& name) const;

  /// The tensor, on the CPU. It views the map (and keeps it alive) without a copy, so it must not be written to: the
  /// memory is read-only. Only a tensor whose place in the file is not aligned for its type is a copy. Throws a usage
  /// error if there is no such tensor, or ATen has no such type.
  at::Tensor tensor(const std::string& name) const;
  /// The elements [begin, end) of its first dimension, as above: no byte of the others is read.
  at::Tensor rows(const std::string& name, int64_t begin, int64_t end) const;
  /// Copies these rows into `target`, of any type and device and of their shape: by reading where that is as stored
  /// and large, as a map costs a fault for every few pages.
  void copy_rows(const std::string& name, int64_t begin, int64_t end, const at::Tensor& target) const;

 private:
  at::Tensor read(const TensorInfo& stored, int64_t begin_byte, std::vector<int64_t> shape) const;

  std::filesystem::path path_;
  std::shared_ptr<const MappedFile> map_;
  std::shared_ptr<const InputFile> content_;
  int64_t data_start_ = 0;
  SafetensorsHeader header_;
  std::unordered_map<std::string, size_t> index_;
};

}  // namespace lehr::state
