#include "lehr/state/safetensors.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <string_view>

#include "lehr/base/error.h"
#include "lehr/config/suggest.h"
#include "lehr/state/direct_io.h"
#include "lehr/state/pickle.h"

namespace lehr::state {

static_assert(std::endian::native == std::endian::little, "safetensors files are little-endian");

namespace {
// Returns the JSON of the header, after a check of its length.
std::string_view header_text(std::span<const std::byte> bytes, const std::string& file) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  require(
      !text.starts_with("version https://git-lfs"),
      "{}: is a Git LFS pointer, not the file itself; fetch it with `git lfs pull`",
      file);
  constexpr size_t kEnoughToTell = 512;
  require(
      !is_pickle({}, text.substr(0, kEnoughToTell)),
      "{}: is a pickle, which can run any code when it is read, so Lehr does not read it; convert it to safetensors "
      "where you trust it",
      file);
  require(
      text.size() >= static_cast<size_t>(kHeaderLengthBytes),
      "{}: expected a safetensors file, found {} bytes; if it is truncated, download it again",
      file,
      text.size());
  uint64_t length = 0;
  std::memcpy(&length, text.data(), sizeof length);
  const uint64_t rest = text.size() - static_cast<size_t>(kHeaderLengthBytes);
  require(
      length <= static_cast<uint64_t>(kMaxHeaderBytes),
      "{}: expected a safetensors file, found a header of {} bytes, but at most {} are allowed; is it in another "
      "format?",
      file,
      length,
      kMaxHeaderBytes);
  require(
      length <= rest,
      "{}: the header has {} bytes, but only {} follow its length; if the file is truncated, download it again",
      file,
      length,
      rest);
  return text.substr(static_cast<size_t>(kHeaderLengthBytes), length);
}
}  // namespace

SafetensorsFile::SafetensorsFile(std::filesystem::path path, Reading reading)
    : path_(std::move(path)),
      map_(std::make_shared<const MappedFile>(path_)),
      content_(std::make_shared<const InputFile>(path_, reading)) {
  const std::string file = path_.string();
  const std::string_view text = header_text(map_->bytes(), file);
  data_start_ = kHeaderLengthBytes + static_cast<int64_t>(text.size());
  header_ = parse_safetensors_header(text, static_cast<int64_t>(map_->bytes().size()) - data_start_, file);
  for (size_t i = 0; i < header_.tensors.size(); ++i) {
    index_.emplace(header_.tensors[i].name, i);
  }
}

const TensorInfo& SafetensorsFile::info(const std::string& name) const {
  const auto found = index_.find(name);
  if (found == index_.end()) {
    std::vector<std::string> names;
    for (const TensorInfo& tensor : header_.tensors) {
      names.push_back(tensor.name);
    }
    const auto nearest = suggest(name, names);
    fail("{}: {}: no such tensor{}", path_.string(), name, nearest ? fmt::format("; did you mean {}?", *nearest) : "");
  }
  return header_.tensors[found->second];
}

at::Tensor SafetensorsFile::tensor(const std::string& name) const {
  const TensorInfo& found = info(name);
  return read(found, 0, found.shape);
}

at::Tensor SafetensorsFile::rows(const std::string& name, int64_t begin, int64_t end) const {
  const TensorInfo& found = info(name);
  const int64_t count = found.shape.empty() ? -1 : found.shape.front();
  require(
      begin >= 0 && begin <= end && end <= count,
      "{}: {}: rows {} to {} were requested, but it has {}",
      path_.string(),
      name,
      begin,
      end,
      std::max<int64_t>(count, 0));
  std::vector<int64_t> shape = found.shape;
  shape.front() = end - begin;
  return read(found, count == 0 ? 0 : found.num_bytes() / count * begin, std::move(shape));
}

void SafetensorsFile::copy_rows(const std::string& name, int64_t begin, int64_t end, const at::Tensor& target) const {
  const at::Tensor there = rows(name, begin, end);  // a view: nothing is read yet
  const bool as_stored = target.is_cpu() && target.is_contiguous() && target.scalar_type() == there.scalar_type() &&
                         target.sizes() == there.sizes();
  if (!as_stored || !there.is_contiguous() || target.nbytes() < kWorthDirect) {
    target.copy_(there);
    return;
  }
  const TensorInfo& stored = info(name);
  const int64_t row_bytes = stored.num_bytes() / stored.shape.front();
  content_->read(
      data_start_ + stored.begin + begin * row_bytes,
      {static_cast<std::byte*>(target.mutable_data_ptr()), target.nbytes()});
}

at::Tensor SafetensorsFile::read(const TensorInfo& stored, int64_t begin_byte, std::vector<int64_t> shape) const {
  const auto type = scalar_type(stored.dtype);
  if (!type) {
    fail(
        "{}: {}: tensors of type {} cannot be read; convert the file to a type such as F32 or BF16",
        path_.string(),
        stored.name,
        dtype_name(stored.dtype));
  }
  const auto options = at::TensorOptions().dtype(*type).device(at::kCPU);
  const int64_t bytes = state::num_bytes(stored.dtype, shape, stored.name);
  if (bytes == 0) {
    return at::empty(shape, options);
  }
  const std::byte* first = map_->bytes().data() + data_start_ + stored.begin + begin_byte;
  if (reinterpret_cast<uintptr_t>(first) % c10::elementSize(*type) != 0) {
    at::Tensor copy = at::empty(shape, options);
    std::memcpy(copy.mutable_data_ptr(), first, static_cast<size_t>(bytes));
    return copy;
  }
  // from_blob has no overload for read-only memory.
  void* data = const_cast<std::byte*>(first);
  return at::from_blob(
      data, shape, [keep = map_](void*) {}, options);
}

}  // namespace lehr::state
