#include "lehr/state/checkpoint_contents.h"

#include <algorithm>
#include <memory>
#include <set>

#include "lehr/base/error.h"
#include "lehr/base/file.h"

namespace lehr::state {

namespace {
namespace fs = std::filesystem;

FilePlan plan_of(const WeightSet& set) {
  return plan_files(set.stem, describe(set.tensors, set.dtype), set.max_shard_bytes);
}

void check_name(const std::string& name, std::set<std::string>& names) {
  const fs::path path = name;
  require(
      !name.empty() && !path.is_absolute() && !path.filename().empty() && name.find('\0') == std::string::npos &&
          std::find(path.begin(), path.end(), "..") == path.end(),
      "checkpoint: expected the name of a file in its folder, found \"{}\"",
      name);
  require(names.insert(path.lexically_normal().string()).second, "checkpoint: {}: to be written twice", name);
}

void write_file(const fs::path& folder, const std::string& name, std::string_view content) {
  const fs::path path = folder / name;
  std::error_code error;
  fs::create_directories(path.parent_path(), error);
  if (error) {
    fail_runtime("{}: cannot be created: {}", path.parent_path().string(), error.message());
  }
  write_synced(path, content);
}

void write_contents(const fs::path& folder, const CheckpointContents& contents) {
  // The space of all large files first, so that a full disk is found at once.
  std::vector<std::unique_ptr<SafetensorsWriter>> writers;
  for (const WeightSet& set : contents.weights) {
    writers.push_back(std::make_unique<SafetensorsWriter>(folder, plan_of(set)));
    writers.back()->create();
  }
  for (const auto& [name, text] : contents.texts) {
    write_file(folder, name, text);
  }
  for (const auto& [name, source] : contents.copies) {
    write_file(folder, name, read_file(source));
  }
  for (size_t i = 0; i < writers.size(); ++i) {
    for (const auto& [name, tensor] : contents.weights[i].tensors) {
      writers[i]->write(name, tensor);
    }
    writers[i]->sync();
  }
}
}  // namespace

void check(const CheckpointContents& contents) {
  std::set<std::string> names;
  for (const WeightSet& set : contents.weights) {
    const FilePlan plan = plan_of(set);
    for (const PlannedFile& file : plan.files) {
      check_name(file.name, names);
    }
    if (!plan.index_name.empty()) {
      check_name(plan.index_name, names);
    }
  }
  for (const auto& [name, text] : contents.texts) {
    check_name(name, names);
  }
  for (const auto& [name, source] : contents.copies) {
    check_name(name, names);
    std::error_code error;
    require(fs::is_regular_file(source, error), "{}: no such file; {} was to be a copy of it", source.string(), name);
  }
}

int64_t num_bytes(const CheckpointContents& contents) {
  int64_t sum = 0;
  for (const WeightSet& set : contents.weights) {
    sum += plan_of(set).total_bytes;
  }
  return sum;
}

void write_checkpoint(CheckpointStore& store, const CheckpointContents& contents) {
  check(contents);
  store.begin(contents.step);
  try {
    write_contents(store.temporary_path(contents.step), contents);
    store.commit(contents.step);
  } catch (...) {
    store.abandon(contents.step);
    throw;
  }
}

}  // namespace lehr::state
