#include "lehr/state/weights.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <map>

#include "lehr/base/error.h"
#include "lehr/base/open_file.h"
#include "lehr/config/suggest.h"
#include "lehr/state/checkpoint.h"
#include "lehr/state/pickle.h"
#include "lehr/state/strict_json.h"

namespace lehr::state {

namespace {
namespace fs = std::filesystem;

constexpr const char* kWeightsAdvice = "download or save the checkpoint again";

// Returns file names by tensor name, in the order of the tensor names.
std::map<std::string, std::string> read_weight_map(const fs::path& index) {
  const std::string file = index.string();
  const auto root = parse_strict_json(read_file(index), file, 8, kWeightsAdvice);
  const auto found = root.find("weight_map");
  require(
      found != root.end() && found->is_object(),
      "{}: weight_map: expected an object from tensor names to file names; {}",
      file,
      kWeightsAdvice);
  std::map<std::string, std::string> weight_map;
  for (const auto& [name, value] : found->items()) {
    require(value.is_string(), "{}: weight_map: {}: expected a file name; {}", file, name, kWeightsAdvice);
    weight_map.emplace(name, value.get<std::string>());
  }
  return weight_map;
}

// Checks that a file named by an index is in the index's folder.
fs::path shard_path(const fs::path& index, const std::string& tensor, const std::string& name) {
  const fs::path shard = name;
  const bool outside = shard.is_absolute() || std::find(shard.begin(), shard.end(), "..") != shard.end();
  require(
      !name.empty() && name.find('\0') == std::string::npos && !outside,
      "{}: weight_map: {}: expected a file in the same folder, found \"{}\"; do not trust this checkpoint",
      index.string(),
      tensor,
      name);
  return path_beneath(index.parent_path(), shard);
}
bool is_shard(const std::string& name, const std::string& stem) {
  return name.starts_with(stem + "-") && name.find("-of-") != std::string::npos && name.ends_with(".safetensors");
}

// The safetensors files of a folder, sorted.
std::vector<std::string> files_in(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder, ignored)) {
    if (entry.path().extension() == ".safetensors") {
      names.push_back(entry.path().filename().string());
    }
  }
  std::sort(names.begin(), names.end());
  return names;
}

// What a folder without an index has instead.
std::string describe_files(const fs::path& folder, const std::string& stem) {
  const std::vector<std::string> names = files_in(folder);
  if (names.empty()) {
    return "";
  }
  constexpr size_t kMost = 3;
  const std::string shown = fmt::format(
      "{}{}",
      fmt::join(names.begin(), names.begin() + static_cast<int64_t>(std::min(names.size(), kMost)), ", "),
      names.size() > kMost ? fmt::format(" and {} more", names.size() - kMost) : "");
  if (!is_shard(names.front(), stem)) {
    return "; found " + shown;
  }
  return fmt::format(
      "; found the shards {}, but not the index, which says what is in which: download {}.safetensors.index.json from "
      "where they came, or save the model again (save_pretrained writes it)",
      shown,
      stem);
}
}  // namespace

bool WeightReader::exists(const fs::path& folder, const std::string& stem) {
  std::error_code ignored;
  const auto names = files_in(folder);
  return fs::exists(folder / (stem + ".safetensors"), ignored) ||
         fs::exists(folder / (stem + ".safetensors.index.json"), ignored) ||
         std::any_of(names.begin(), names.end(), [&](const std::string& name) { return is_shard(name, stem); });
}

WeightReader::WeightReader(const fs::path& path, const std::string& stem, Reading reading)
    : path_(path), reading_(reading) {
  std::error_code error;
  const auto status = fs::status(path, error);
  require(fs::exists(status), "{}: no such file or folder", path.string());
  if (!fs::is_directory(status)) {
    require(
        path.filename() != "config.json",
        "{}: expected weights, found the config of a model; name its folder",
        path.string());
    if (path.extension() == ".json") {
      open_index(path);
    } else {
      files_.emplace_back(path, reading_);
    }
  } else if (const fs::path single = path_beneath(path, stem + ".safetensors"); fs::exists(single, error)) {
    files_.emplace_back(single, reading_);
  } else {
    const fs::path index = path_beneath(path, stem + ".safetensors.index.json");
    if (!fs::exists(index, error)) {
      const auto pickle = pickled_weights(path);
      fail(
          "{}: expected {}.safetensors or {}.safetensors.index.json, found neither{}{}{}",
          path.string(),
          stem,
          stem,
          meant_checkpoint(path),
          describe_files(path, stem),
          pickle ? fmt::format(
                       "; {} is a pickle, which can run any code when it is read, so Lehr does not: convert it to "
                       "safetensors where you trust it",
                       pickle->string())
                 : "");
    }
    open_index(index);
  }
  finish();
}

void WeightReader::open_index(const fs::path& index) {
  std::map<std::string, size_t> opened;  // file name -> index in files_
  const auto weight_map = read_weight_map(index);
  for (const auto& [name, file] : weight_map) {
    const fs::path shard = shard_path(index, name, file);
    auto [place, is_new] = opened.emplace(file, files_.size());
    if (is_new) {
      std::error_code error;
      require(
          fs::exists(shard, error),
          "{}: names {} (for {}), which does not exist; {}",
          index.string(),
          file,
          name,
          kWeightsAdvice);
      files_.emplace_back(shard, reading_);
    }
    require(
        files_[place->second].has(name),
        "{}: {}: expected it in {}, which does not contain it; {}",
        index.string(),
        name,
        file,
        kWeightsAdvice);
  }
  for (const auto& [file, place] : opened) {
    for (const TensorInfo& tensor : files_[place].tensors()) {
      const auto listed = weight_map.find(tensor.name);
      require(
          listed != weight_map.end(),
          "{}: {}: {} contains it, but the index does not list it; {}",
          index.string(),
          tensor.name,
          file,
          kWeightsAdvice);
      require(
          listed->second == file,
          "{}: {}: both {} and {} contain it; {}",
          index.string(),
          tensor.name,
          listed->second,
          file,
          kWeightsAdvice);
    }
  }
  std::sort(files_.begin(), files_.end(), [](const SafetensorsFile& a, const SafetensorsFile& b) {
    return a.path() < b.path();
  });
}

void WeightReader::finish() {
  for (size_t i = 0; i < files_.size(); ++i) {
    for (const TensorInfo& tensor : files_[i].tensors()) {
      names_.push_back(tensor.name);
      file_of_.emplace(tensor.name, i);
      total_bytes_ += tensor.num_bytes();
    }
  }
  replace_quantized();
}

void WeightReader::replace_quantized() {
  const auto found = find_quantized(names_, [this](const std::string& name) {
    const auto file = file_of_.find(name);
    return file == file_of_.end() ? nullptr : &files_[file->second];
  });
  if (found.empty()) {
    return;
  }
  std::unordered_map<std::string, std::string> replaced;  // by the name of the stored values
  for (const QuantizedTensor& tensor : found) {
    for (const std::string& stored : {tensor.values, tensor.scales}) {
      quantized_file_of_.insert(file_of_.extract(stored));
    }
    replaced.emplace(tensor.values, tensor.info.name);
    quantized_.emplace(tensor.info.name, tensor);
  }
  std::vector<std::string> names;
  for (const std::string& name : names_) {
    if (const auto plain = replaced.find(name); plain != replaced.end()) {
      names.push_back(plain->second);
    } else if (!quantized_file_of_.contains(name)) {
      names.push_back(name);
    }
  }
  names_ = std::move(names);
}

const SafetensorsFile& WeightReader::file_of(const std::string& name) const {
  const auto found = file_of_.find(name);
  if (found == file_of_.end()) {
    const auto nearest = suggest(name, names_);
    fail("{}: {}: no such tensor{}", path_.string(), name, nearest ? fmt::format("; did you mean {}?", *nearest) : "");
  }
  return files_[found->second];
}

const TensorInfo& WeightReader::info(const std::string& name) const {
  const auto quantized = quantized_.find(name);
  return quantized != quantized_.end() ? quantized->second.info : file_of(name).info(name);
}

at::Tensor WeightReader::tensor(const std::string& name) const {
  return quantized_.contains(name) ? region(name, whole_box(info(name).shape)) : file_of(name).tensor(name);
}

at::Tensor WeightReader::rows(const std::string& name, int64_t begin, int64_t end) const {
  if (!quantized_.contains(name)) {
    return file_of(name).rows(name, begin, end);
  }
  Box box = whole_box(info(name).shape);
  box.front() = {begin, end};
  return region(name, box);
}

at::Tensor WeightReader::region(const std::string& name, const Box& box) const {
  if (const auto quantized = quantized_.find(name); quantized != quantized_.end()) {
    return read_quantized(quantized->second, box, at::kBFloat16, stored_files());
  }
  if (box.empty()) {
    return file_of(name).tensor(name);
  }
  Box rest = box;
  rest.front() = {0, box.front().size()};
  return narrow_to(file_of(name).rows(name, box.front().begin, box.front().end), rest);
}

void WeightReader::copy_region(const std::string& name, const Box& box, const at::Tensor& target) const {
  if (const auto quantized = quantized_.find(name); quantized != quantized_.end()) {
    const bool is_matrix = box.size() < 3;
    Box part = box;
    for (int64_t i = 0; !is_matrix && i < box.front().size(); ++i) {
      part.front() = {box.front().begin + i, box.front().begin + i + 1};
      target.narrow(0, i, 1).copy_(read_quantized(quantized->second, part, target.scalar_type(), stored_files()));
    }
    if (is_matrix) {
      target.copy_(read_quantized(quantized->second, box, target.scalar_type(), stored_files()));
    }
    return;
  }
  const std::vector<int64_t>& shape = info(name).shape;
  bool whole_rows = !box.empty();
  for (size_t dim = 1; dim < box.size(); ++dim) {
    whole_rows = whole_rows && box[dim].size() == shape[dim];
  }
  if (whole_rows) {
    file_of(name).copy_rows(name, box.front().begin, box.front().end, target);
  } else {
    target.copy_(region(name, box));
  }
}

FileOf WeightReader::stored_files() const {
  return [this](const std::string& name) { return &files_[quantized_file_of_.at(name)]; };
}

}  // namespace lehr::state
