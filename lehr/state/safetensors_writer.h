// Writes safetensors files after a plan: one process makes them, any number fill them.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lehr/base/box.h"
#include "lehr/base/torch.h"
#include "lehr/state/file_plan.h"
#include "lehr/state/output_file.h"

namespace lehr::state {

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

/// What plan_files needs to know of tensors; `dtype`, if given, is the type of all floating-point ones in the file.
std::vector<TensorInfo> describe(const NamedTensors& tensors, std::optional<at::ScalarType> dtype = std::nullopt);

/// Throws a usage error unless `tensor` can be that box of a tensor of that shape.
void require_part(const std::string& name, const std::vector<int64_t>& shape, const Box& box, const at::Tensor& tensor);

/// What one writer put into a file.
struct FileShare {
  int64_t num_bytes = 0;
  /// Linear CRC-32C (base/crc32c.h) of the file with zeros where others write: the exclusive or of all writers' is that
  /// of the file.
  uint32_t crc = 0;
};

/// Functions throw runtime errors where the disk is at fault, and usage errors for names, shapes or ranges that are not
/// in the plan. What was written is in the files when `sync` has returned, perhaps not before.
class SafetensorsWriter {
 public:
  /// Does nothing yet. Every rank that writes has one, with the same plan. `patience` is what it waits for a file that
  /// another process made: file systems may show such files late.
  SafetensorsWriter(
      std::filesystem::path folder, FilePlan plan, std::chrono::milliseconds patience = std::chrono::milliseconds(0));

  /// Makes all files in their full size, with headers, and the index. Exactly one rank calls it, before any writes.
  void create();

  /// Writes bytes of a tensor, `offset` bytes from its beginning. Any thread; ranges must not overlap.
  void write(const std::string& name, int64_t offset, std::span<const std::byte> bytes);
  /// Writes a whole tensor, converted to the type of the plan.
  void write(const std::string& name, const at::Tensor& tensor);
  /// Writes that part of a tensor, converted to the type of the plan. Stretches that lie behind each other in the file
  /// go there together, whether they come from one call or from several.
  void write(const std::string& name, const Box& box, const at::Tensor& tensor);

  /// Returns when all that was written through this object is on the disk, in files of the planned sizes.
  void sync();

  /// What was written through this object, for each file of the plan.
  std::vector<FileShare> shares();

  const FilePlan& plan() const { return plan_; }

 private:
  struct Pending {
    size_t file = 0;
    int64_t offset = 0;
    std::vector<std::byte> bytes;
  };
  const OutputFile& file(size_t index);
  void put(const PlannedTensor& planned, int64_t offset, std::span<const std::byte> bytes);
  void count(size_t file, int64_t end, int64_t num_bytes, uint32_t crc);
  void flush();

  std::filesystem::path folder_;
  FilePlan plan_;
  std::chrono::milliseconds patience_;
  std::mutex mutex_;                                // over what follows
  std::vector<std::unique_ptr<OutputFile>> files_;  // opened when first needed
  std::vector<FileShare> shares_;
  Pending pending_;  // small stretches that are yet to be written
};

/// Writes one file, which appears in one step when it is on the disk. For what is no checkpoint: test vectors, results.
void save_safetensors(
    const std::filesystem::path& path,
    const NamedTensors& tensors,
    const std::map<std::string, std::string>& metadata = {{"format", "pt"}});

}  // namespace lehr::state
