// Writes safetensors files after a plan: one process makes them, any number fill them.
#pragma once

#include <cstddef>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lehr/base/torch.h"
#include "lehr/state/file_plan.h"
#include "lehr/state/output_file.h"

namespace lehr::state {

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

/// What plan_files needs to know of tensors; `dtype`, if given, is the type of all floating-point ones in the file.
std::vector<TensorInfo> describe(const NamedTensors& tensors, std::optional<at::ScalarType> dtype = std::nullopt);

/// Functions throw runtime errors where the disk is at fault, and usage errors for names, shapes or ranges that are not
/// in the plan.
class SafetensorsWriter {
 public:
  /// Does nothing yet. Every rank that writes has one, with the same plan.
  SafetensorsWriter(std::filesystem::path folder, FilePlan plan);

  /// Makes all files in their full size, with headers, and the index. Exactly one rank calls it, before any writes.
  void create();

  /// Writes bytes of a tensor, `offset` bytes from its beginning. Any thread; ranges must not overlap.
  void write(const std::string& name, int64_t offset, std::span<const std::byte> bytes);
  /// Writes a whole tensor, converted to the type of the plan.
  void write(const std::string& name, const at::Tensor& tensor);

  /// Returns when all that was written through this object is on the disk.
  void sync();

  const FilePlan& plan() const { return plan_; }

 private:
  const OutputFile& file(size_t index);

  std::filesystem::path folder_;
  FilePlan plan_;
  std::mutex mutex_;                                // over files_
  std::vector<std::unique_ptr<OutputFile>> files_;  // opened when first needed
};

/// Writes one file, which appears in one step when it is on the disk. For what is no checkpoint: test vectors, results.
void save_safetensors(
    const std::filesystem::path& path,
    const NamedTensors& tensors,
    const std::map<std::string, std::string>& metadata = {{"format", "pt"}});

}  // namespace lehr::state
