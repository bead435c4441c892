#include "lehr/state/safetensors_writer.h"

#include <fmt/ranges.h>

#include <map>
#include <set>
#include <thread>

#include "lehr/base/crc32c.h"
#include "lehr/base/error.h"
#include "lehr/base/file.h"

namespace lehr::state {

namespace {
namespace fs = std::filesystem;

// Returns the tensor as it is stored: dense, contiguous, on the CPU.
at::Tensor storable(const at::Tensor& tensor, at::ScalarType type) {
  const at::NoGradGuard no_grad;
  return tensor.detach().to(at::TensorOptions().device(at::kCPU).dtype(type)).contiguous().resolve_conj().resolve_neg();
}

std::span<const std::byte> bytes_of(const at::Tensor& tensor) {
  return {static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()};
}
}  // namespace

std::vector<TensorInfo> describe(const NamedTensors& tensors, std::optional<at::ScalarType> dtype) {
  std::vector<TensorInfo> infos;
  for (const auto& [name, tensor] : tensors) {
    require(tensor.defined(), "{}: there is no tensor to store", name);
    const bool cast = dtype.has_value() && tensor.is_floating_point();
    infos.push_back(
        {.name = name, .dtype = dtype_of(cast ? *dtype : tensor.scalar_type()), .shape = tensor.sizes().vec()});
  }
  return infos;
}

void require_part(
    const std::string& name, const std::vector<int64_t>& shape, const Box& box, const at::Tensor& tensor) {
  bool inside = box.size() == shape.size();
  for (size_t dim = 0; inside && dim < box.size(); ++dim) {
    inside = box[dim].begin >= 0 && box[dim].begin <= box[dim].end && box[dim].end <= shape[dim];
  }
  require(
      inside && tensor.sizes() == at::IntArrayRef(shape_of(box)),
      "{}: expected a region of [{}], found {} with a tensor of shape [{}]",
      name,
      fmt::join(shape, ", "),
      describe(box),
      fmt::join(tensor.sizes(), ", "));
}

SafetensorsWriter::SafetensorsWriter(fs::path folder, FilePlan plan, std::chrono::milliseconds patience)
    : folder_(std::move(folder)),
      plan_(std::move(plan)),
      patience_(patience),
      files_(plan_.files.size()),
      shares_(plan_.files.size()) {}

void SafetensorsWriter::create() {
  std::set<fs::path> below;
  for (const PlannedFile& planned : plan_.files) {
    if (const fs::path parent = fs::path(planned.name).parent_path(); !parent.empty()) {
      below.insert(folder_ / parent);
    }
  }
  for (const fs::path& path : below) {
    std::error_code error;
    fs::create_directories(path, error);
    if (error) {
      fail_runtime("{}: cannot be created: {}", path.string(), error.message());
    }
  }
  // All space is allocated first, so that a full disk is found before the first gigabyte is written.
  for (size_t i = 0; i < plan_.files.size(); ++i) {
    const PlannedFile& planned = plan_.files[i];
    files_[i] = std::make_unique<OutputFile>(OutputFile::create(folder_ / planned.name, planned.num_bytes));
  }
  for (size_t i = 0; i < plan_.files.size(); ++i) {
    const std::string& header = plan_.files[i].header;
    files_[i]->write(0, header);
    const auto size = static_cast<int64_t>(header.size());
    count(i, size, size, crc32c_linear(std::as_bytes(std::span(header))));
  }
  for (const fs::path& path : below) {
    sync_folder(path);
  }
  if (!plan_.index_name.empty()) {
    write_synced(folder_ / plan_.index_name, plan_.index);
  }
}

// The caller must hold the lock.
const OutputFile& SafetensorsWriter::file(size_t index) {
  if (files_[index] == nullptr) {
    const fs::path path = folder_ / plan_.files[index].name;
    const auto start = std::chrono::steady_clock::now();
    std::error_code error;
    while (!fs::exists(path, error) && std::chrono::steady_clock::now() - start < patience_) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    if (patience_.count() > 0 && !fs::exists(path, error)) {
      fail_runtime(
          "{}: cannot be opened for writing: the main rank created it, but it is not visible here; all ranks must "
          "share the folder",
          path.string());
    }
    files_[index] = std::make_unique<OutputFile>(OutputFile::open(path));
  }
  return *files_[index];
}

void SafetensorsWriter::count(size_t file, int64_t end, int64_t num_bytes, uint32_t crc) {
  // A linear CRC shifted to the end of the file; those of disjoint ranges combine by exclusive or.
  const uint32_t there = Crc32cZeros(plan_.files[file].num_bytes - end).behind(crc);
  const std::lock_guard lock(mutex_);
  shares_[file].num_bytes += num_bytes;
  shares_[file].crc ^= there;
}

// The caller must hold the lock.
void SafetensorsWriter::flush() {
  if (!pending_.bytes.empty()) {
    const OutputFile& target = file(pending_.file);
    target.write(pending_.offset, pending_.bytes);
    pending_.bytes.clear();
  }
}

// Writes bytes without updating the checksum. Small writes are buffered and merged with their neighbours.
void SafetensorsWriter::put(const PlannedTensor& planned, int64_t offset, std::span<const std::byte> bytes) {
  constexpr size_t kSmall = size_t{256} << 10;
  constexpr size_t kTogether = size_t{4} << 20;
  const int64_t begin = planned.offset + offset;
  if (bytes.size() >= kSmall) {
    const OutputFile* target = nullptr;
    {
      const std::lock_guard lock(mutex_);
      target = &file(planned.file);
    }
    target->write(begin, bytes);
    return;
  }
  const std::lock_guard lock(mutex_);
  const bool follows = pending_.file == planned.file &&
                       pending_.offset + static_cast<int64_t>(pending_.bytes.size()) == begin &&
                       pending_.bytes.size() + bytes.size() <= kTogether;
  if (!follows) {
    flush();
    pending_.file = planned.file;
    pending_.offset = begin;
  }
  pending_.bytes.insert(pending_.bytes.end(), bytes.begin(), bytes.end());
}

void SafetensorsWriter::write(const std::string& name, int64_t offset, std::span<const std::byte> bytes) {
  const PlannedTensor& planned = plan_.at(name);
  const auto size = static_cast<int64_t>(bytes.size());
  require(
      offset >= 0 && size <= planned.num_bytes && offset <= planned.num_bytes - size,
      "{}: {} bytes at offset {} do not fit into its {} bytes",
      name,
      size,
      offset,
      planned.num_bytes);
  put(planned, offset, bytes);
  count(planned.file, planned.offset + offset + size, size, crc32c_linear(bytes));
}

void SafetensorsWriter::write(const std::string& name, const at::Tensor& tensor) {
  const PlannedTensor& planned = plan_.at(name);
  require(
      tensor.sizes() == at::IntArrayRef(planned.shape),
      "{}: expected shape [{}] as planned, found [{}]",
      name,
      fmt::join(planned.shape, ", "),
      fmt::join(tensor.sizes(), ", "));
  write(name, whole_box(planned.shape), tensor);
}

void SafetensorsWriter::write(const std::string& name, const Box& box, const at::Tensor& tensor) {
  const PlannedTensor& planned = plan_.at(name);
  require_part(name, planned.shape, box, tensor);
  const auto type = scalar_type(planned.dtype);
  if (!type) {
    fail("{}: tensors of type {} cannot be written", name, dtype_name(planned.dtype));
  }
  const at::Tensor stored = storable(tensor, *type);
  const auto bytes = bytes_of(stored);
  const auto element = static_cast<int64_t>(stored.element_size());
  uint32_t crc = 0;
  int64_t end = 0;
  // The CRC of the runs with zeros between them. Gaps of one size recur, so their operators are cached.
  std::map<int64_t, Crc32cZeros> gaps;
  for (const BoxRun& run : runs_of(box, planned.shape)) {
    const auto part = bytes.subspan(static_cast<size_t>(run.local * element), static_cast<size_t>(run.count * element));
    const int64_t begin = run.global * element;
    put(planned, begin, part);
    if (crc != 0) {
      const int64_t gap = begin - end;
      crc = gaps.try_emplace(gap, gap).first->second.behind(crc);
    }
    crc = crc32c_linear(part, crc);
    end = begin + static_cast<int64_t>(part.size());
  }
  count(planned.file, planned.offset + end, static_cast<int64_t>(bytes.size()), crc);
}

void SafetensorsWriter::sync() {
  const std::lock_guard lock(mutex_);
  flush();
  for (size_t i = 0; i < files_.size(); ++i) {
    if (files_[i] != nullptr) {
      files_[i]->sync();
      files_[i]->require_size(plan_.files[i].num_bytes);
    }
  }
}

std::vector<FileShare> SafetensorsWriter::shares() {
  const std::lock_guard lock(mutex_);
  return shares_;
}

void save_safetensors(
    const fs::path& path, const NamedTensors& tensors, const std::map<std::string, std::string>& metadata) {
  require_replaceable(path);
  const FilePlan plan = plan_files(path.stem().string(), describe(tensors), INT64_MAX, metadata);
  const PlannedFile& planned = plan.files.front();
  const fs::path temporary = path.parent_path() / ("." + path.filename().string() + ".saving");
  std::error_code error;
  try {
    const OutputFile file = OutputFile::create(temporary, planned.num_bytes);
    file.write(0, planned.header);
    for (const auto& [name, tensor] : tensors) {
      const at::Tensor stored = storable(tensor, tensor.scalar_type());
      file.write(plan.at(name).offset, bytes_of(stored));
    }
    file.sync();
    fs::rename(temporary, path, error);
    if (error) {
      fail_runtime("{}: cannot be renamed: {}", path.string(), error.message());
    }
  } catch (...) {
    fs::remove(temporary, error);
    throw;
  }
  sync_folder(path.has_parent_path() ? path.parent_path() : fs::path("."));
}

}  // namespace lehr::state
