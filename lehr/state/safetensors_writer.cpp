#include "lehr/state/safetensors_writer.h"

#include <fmt/ranges.h>

#include "lehr/base/error.h"

namespace lehr::state {

namespace {
namespace fs = std::filesystem;

// The tensor as the file shall hold it: dense, in order, on the CPU.
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
    require(tensor.defined(), "{}: there is no tensor to be stored", name);
    const bool cast = dtype.has_value() && tensor.is_floating_point();
    infos.push_back(
        {.name = name, .dtype = dtype_of(cast ? *dtype : tensor.scalar_type()), .shape = tensor.sizes().vec()});
  }
  return infos;
}

SafetensorsWriter::SafetensorsWriter(fs::path folder, FilePlan plan)
    : folder_(std::move(folder)), plan_(std::move(plan)), files_(plan_.files.size()) {}

void SafetensorsWriter::create() {
  // All space first, so that a full disk is found before the first gigabyte is written.
  for (size_t i = 0; i < plan_.files.size(); ++i) {
    const PlannedFile& planned = plan_.files[i];
    files_[i] = std::make_unique<OutputFile>(OutputFile::create(folder_ / planned.name, planned.num_bytes));
  }
  for (size_t i = 0; i < plan_.files.size(); ++i) {
    files_[i]->write(0, plan_.files[i].header);
  }
  if (!plan_.index_name.empty()) {
    write_synced(folder_ / plan_.index_name, plan_.index);
  }
}

const OutputFile& SafetensorsWriter::file(size_t index) {
  const std::lock_guard lock(mutex_);
  if (files_[index] == nullptr) {
    files_[index] = std::make_unique<OutputFile>(OutputFile::open(folder_ / plan_.files[index].name));
  }
  return *files_[index];
}

void SafetensorsWriter::write(const std::string& name, int64_t offset, std::span<const std::byte> bytes) {
  const PlannedTensor& planned = plan_.at(name);
  const auto size = static_cast<int64_t>(bytes.size());
  require(
      offset >= 0 && size <= planned.num_bytes && offset <= planned.num_bytes - size,
      "{}: {} bytes at offset {} do not fit its {} bytes",
      name,
      size,
      offset,
      planned.num_bytes);
  file(planned.file).write(planned.offset + offset, bytes);
}

void SafetensorsWriter::write(const std::string& name, const at::Tensor& tensor) {
  const PlannedTensor& planned = plan_.at(name);
  require(
      tensor.sizes() == at::IntArrayRef(planned.shape),
      "{}: expected shape [{}] as planned, found [{}]",
      name,
      fmt::join(planned.shape, ", "),
      fmt::join(tensor.sizes(), ", "));
  const auto type = scalar_type(planned.dtype);
  require(type.has_value(), "{}: tensors of type {} cannot be written", name, dtype_name(planned.dtype));
  const at::Tensor stored = storable(tensor, *type);
  write(name, 0, bytes_of(stored));
}

void SafetensorsWriter::sync() {
  const std::lock_guard lock(mutex_);
  for (const auto& opened : files_) {
    if (opened != nullptr) {
      opened->sync();
    }
  }
}

void save_safetensors(
    const fs::path& path, const NamedTensors& tensors, const std::map<std::string, std::string>& metadata) {
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
      fail_runtime("{}: cannot be put in its place: {}", path.string(), error.message());
    }
  } catch (...) {
    fs::remove(temporary, error);
    throw;
  }
  sync_folder(path.has_parent_path() ? path.parent_path() : fs::path("."));
}

}  // namespace lehr::state
