// Writer of safetensors files according to a plan: one process creates them, any number of them fill them.
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

/// Tensors in the order in which they are stored, each with its name.
using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

/// Describes tensors for plan_files. `dtype`, if set, is the stored dtype of all floating-point tensors.
std::vector<TensorInfo> describe(const NamedTensors& tensors, std::optional<at::ScalarType> dtype = std::nullopt);

/// Throws a usage error unless `tensor` fits the region `box` of a tensor of that shape.
void require_part(const std::string& name, const std::vector<int64_t>& shape, const Box& box, const at::Tensor& tensor);

/// The bytes that one writer wrote into a file.
struct FileShare {
  int64_t num_bytes = 0;
  /// Linear CRC-32C (base/crc32c.h) of the file with zeros in place of the bytes of other writers. The exclusive or
  /// over all writers is the CRC of the file.
  uint32_t crc = 0;
};

/// Writes the files of a plan. Functions throw runtime errors for disk failures, and usage errors for names, shapes or
/// ranges that are not in the plan. Data may be buffered until `sync` returns.
class SafetensorsWriter {
 public:
  /// Does no I/O yet. Every rank that writes has a writer with the same plan. `patience` is the time to wait for a file
  /// that another process created: shared file systems may show such files late.
  SafetensorsWriter(
      std::filesystem::path folder, FilePlan plan, std::chrono::milliseconds patience = std::chrono::milliseconds(0));

  /// Creates all files in their full size, with headers, and the index. Exactly one rank calls it, before any writes.
  void create();

  /// Writes bytes of a tensor at `offset` bytes from its start. Thread-safe; ranges must not overlap.
  void write(const std::string& name, int64_t offset, std::span<const std::byte> bytes);
  /// Writes a whole tensor, converted to the dtype of the plan.
  void write(const std::string& name, const at::Tensor& tensor);
  /// Writes a region of a tensor, converted to the dtype of the plan. Small runs that are adjacent in the file are
  /// written together, whether they come from one call or from several.
  void write(const std::string& name, const Box& box, const at::Tensor& tensor);

  /// Waits until everything written through this object is on disk, in files of the planned sizes.
  void sync();

  /// Returns the bytes written through this object, for each file of the plan.
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
  std::mutex mutex_;                                // guards the members below
  std::vector<std::unique_ptr<OutputFile>> files_;  // opened on first use
  std::vector<FileShare> shares_;
  Pending pending_;  // small runs not yet written
};

/// Writes one file, which appears atomically once it is on disk. For files other than checkpoints: test vectors,
/// results.
void save_safetensors(
    const std::filesystem::path& path,
    const NamedTensors& tensors,
    const std::map<std::string, std::string>& metadata = {{"format", "pt"}});

}  // namespace lehr::state
