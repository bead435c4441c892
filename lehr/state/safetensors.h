// Reader of a safetensors file: opening reads the header only, and a tensor is read when it is used.
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

/// One file. Copies share the memory map. Thread-safe.
class SafetensorsFile {
 public:
  /// Opens the file and validates its header completely, so that later reads succeed. Throws usage errors that name the
  /// file and the tensor.
  explicit SafetensorsFile(std::filesystem::path path, Reading reading = Reading::again);

  const std::filesystem::path& path() const { return path_; }
  /// Returns all tensors in file order.
  const std::vector<TensorInfo>& tensors() const { return header_.tensors; }
  const std::map<std::string, std::string>& metadata() const { return header_.metadata; }

  bool has(const std::string& name) const { return index_.count(name) != 0; }
  /// Returns a tensor's entry. Throws a usage error if there is no such tensor.
  const TensorInfo& info(const std::string& name) const;

  /// Returns the tensor, on the CPU. It is a view of the memory map (and keeps it alive) without a copy, so it must not
  /// be written to: the memory is read-only. Only a tensor that is not aligned for its dtype in the file is copied.
  /// Throws a usage error if there is no such tensor, or ATen lacks its dtype.
  at::Tensor tensor(const std::string& name) const;
  /// Returns the rows [begin, end) of a tensor's first dimension, as above; no byte of other rows is read.
  at::Tensor rows(const std::string& name, int64_t begin, int64_t end) const;
  /// Copies these rows into `target`, of any dtype and device and of their shape. If they are large and stored as in
  /// `target`, they are read directly, as a map costs a page fault for every few pages.
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
