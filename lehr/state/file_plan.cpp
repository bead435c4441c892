#include "lehr/state/file_plan.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <tuple>

#include "lehr/base/error.h"

namespace lehr::state {

namespace {
// Fills files in the order of the list. As in huggingface_hub, a tensor that is too large for any file gets one of its
// own, and the file that was begun before it is continued after it.
std::vector<std::vector<TensorInfo>> cut_into_shards(std::vector<TensorInfo> tensors, int64_t max_shard_bytes) {
  std::vector<std::vector<TensorInfo>> shards;
  std::vector<TensorInfo> open;
  int64_t open_bytes = 0;
  for (TensorInfo& tensor : tensors) {
    const int64_t bytes = tensor.num_bytes();
    if (bytes > max_shard_bytes) {
      shards.push_back({std::move(tensor)});
      continue;
    }
    if (open_bytes + bytes > max_shard_bytes) {
      shards.push_back(std::move(open));
      open.clear();
      open_bytes = 0;
    }
    open_bytes += bytes;
    open.push_back(std::move(tensor));
  }
  if (!open.empty() || shards.empty()) {
    shards.push_back(std::move(open));
  }
  return shards;
}

// Sorts as the safetensors library does: wide types first, so that every tensor is aligned; then by name.
void lay_out(std::vector<TensorInfo>& tensors) {
  std::sort(tensors.begin(), tensors.end(), [](const TensorInfo& a, const TensorInfo& b) {
    return std::tie(b.dtype, a.name) < std::tie(a.dtype, b.name);
  });
  int64_t end = 0;
  for (TensorInfo& tensor : tensors) {
    const int64_t bytes = tensor.num_bytes();
    tensor.begin = end;
    end += bytes;
    tensor.end = end;
  }
}

std::string format_index(const FilePlan& plan) {
  nlohmann::json weight_map = nlohmann::json::object();  // sorted by name
  int64_t total_parameters = 0;
  for (const PlannedFile& file : plan.files) {
    for (const TensorInfo& tensor : file.tensors) {
      weight_map[tensor.name] = file.name;
      total_parameters += num_elements(tensor.shape, tensor.name);
    }
  }
  const nlohmann::json index = {
      {"metadata", {{"total_parameters", total_parameters}, {"total_size", plan.total_bytes}}},
      {"weight_map", weight_map}};
  return index.dump(2) + "\n";
}

// Sets the byte range of each tensor, from 0, and adds its size to `total`.
void measure(const std::string& stem, std::vector<TensorInfo>& tensors, int64_t& total) {
  for (TensorInfo& tensor : tensors) {
    const std::string subject = fmt::format("{}.safetensors: {}", stem, tensor.name);
    require(tensor.name != "__metadata__", "{}: the format reserves this name", subject);
    tensor.begin = 0;
    tensor.end = num_bytes(tensor.dtype, tensor.shape, subject);
    require(!__builtin_add_overflow(total, tensor.end, &total), "{}: the total size in bytes overflows", subject);
  }
}

// `files` must hold tensors with sizes set by measure().
FilePlan plan_of(
    const std::string& stem,
    std::vector<FileContents> files,
    bool with_index,
    const std::map<std::string, std::string>& metadata) {
  FilePlan plan;
  for (FileContents& contents : files) {
    lay_out(contents.tensors);
    PlannedFile file{
        .name = std::move(contents.name),
        .header = format_safetensors_header({.tensors = contents.tensors, .metadata = metadata}),
        .tensors = std::move(contents.tensors)};
    const auto header_bytes = static_cast<int64_t>(file.header.size());
    require(
        header_bytes <= kMaxHeaderBytes,
        "{}: its header would have {} bytes, the format allows {}; save in smaller shards",
        file.name,
        header_bytes,
        kMaxHeaderBytes);
    file.num_bytes = header_bytes + (file.tensors.empty() ? 0 : file.tensors.back().end);
    for (const TensorInfo& tensor : file.tensors) {
      const PlannedTensor place{
          .file = plan.files.size(),
          .offset = header_bytes + tensor.begin,
          .num_bytes = tensor.num_bytes(),
          .dtype = tensor.dtype,
          .shape = tensor.shape};
      require(
          plan.places.emplace(tensor.name, place).second,
          "{}.safetensors: {}: planned to be written twice",
          stem,
          tensor.name);
      plan.total_bytes += place.num_bytes;
    }
    plan.files.push_back(std::move(file));
  }
  if (with_index) {
    plan.index_name = stem + ".safetensors.index.json";
    plan.index = format_index(plan);
  }
  return plan;
}
}  // namespace

const PlannedTensor& FilePlan::at(const std::string& name) const {
  const auto found = places.find(name);
  require(found != places.end(), "{}: not among the {} planned tensors", name, places.size());
  return found->second;
}

FilePlan plan_files(
    const std::string& stem,
    const std::vector<TensorInfo>& tensors,
    int64_t max_shard_bytes,
    const std::map<std::string, std::string>& metadata) {
  require(
      max_shard_bytes > 0, "{}.safetensors: max_shard_bytes: expected more than 0, found {}", stem, max_shard_bytes);
  std::vector<TensorInfo> sized = tensors;
  int64_t total_bytes = 0;
  measure(stem, sized, total_bytes);
  auto shards = cut_into_shards(std::move(sized), max_shard_bytes);
  std::vector<FileContents> files;
  for (size_t i = 0; i < shards.size(); ++i) {
    std::string name = shards.size() == 1 ? stem + ".safetensors"
                                          : fmt::format("{}-{:05}-of-{:05}.safetensors", stem, i + 1, shards.size());
    files.push_back({.name = std::move(name), .tensors = std::move(shards[i])});
  }
  return plan_of(stem, std::move(files), /*with_index=*/shards.size() > 1, metadata);
}

FilePlan plan_named_files(
    const std::string& stem,
    const std::vector<FileContents>& files,
    const std::map<std::string, std::string>& metadata) {
  std::vector<FileContents> sized = files;
  int64_t total_bytes = 0;
  for (FileContents& file : sized) {
    measure(stem, file.tensors, total_bytes);
  }
  return plan_of(stem, std::move(sized), /*with_index=*/true, metadata);
}

}  // namespace lehr::state
