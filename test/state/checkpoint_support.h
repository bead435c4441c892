// A small checkpoint whose contents identify the save that wrote it, and its comparison with the files on the disk.
#pragma once

#include <string>

#include "lehr/state/checkpoint_contents.h"
#include "lehr/state/weights.h"
#include "test/state/support.h"

namespace lehr::state::testing {

/// Two shards, an optimizer state and a text, all of them different for each `mark`.
inline CheckpointContents make_contents(int64_t step, int64_t mark) {
  NamedTensors weights;
  NamedTensors moments;
  for (int64_t i = 0; i < 6; ++i) {
    const at::Tensor values = at::arange(mark * 1000 + i, mark * 1000 + i + 40, at::kFloat);
    weights.emplace_back(fmt::format("layer.{}.weight", i), values.view({8, 5}));
    moments.emplace_back(fmt::format("layer.{}.weight.exp_avg", i), values.to(at::kDouble).div(3));
  }
  moments.emplace_back("step", at::full({}, mark, at::kLong));
  return {
      .step = step,
      .weights =
          {{.stem = "model", .tensors = weights, .max_shard_bytes = 500}, {.stem = "optimizer", .tensors = moments}},
      .texts = {{"trainer.json", fmt::format("{{\"mark\": {}}}", mark)}, {"nested/config.json", "{}"}}};
}

/// Whether the folder holds exactly these contents, bit for bit.
inline bool holds(const fs::path& folder, const CheckpointContents& contents) {
  size_t files = contents.texts.size() + contents.copies.size() + 1;  // integrity.json
  for (const WeightSet& set : contents.weights) {
    const WeightReader reader(folder, set.stem);
    files += reader.files().size() + (reader.files().size() > 1 ? 1 : 0);
    if (reader.names().size() != set.tensors.size()) {
      return false;
    }
    for (const auto& [name, tensor] : set.tensors) {
      if (!reader.has(name) || !bit_equal(reader.tensor(name), tensor)) {
        return false;
      }
    }
  }
  for (const auto& [name, text] : contents.texts) {
    if (read_file(folder / name) != text) {
      return false;
    }
  }
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    files -= entry.is_regular_file() ? 1 : 0;
  }
  return files == 0;
}

/// The names in a folder that begin with a dot.
inline std::vector<std::string> hidden_entries(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().filename().string().starts_with('.')) {
      names.push_back(entry.path().filename().string());
    }
  }
  return names;
}

inline std::vector<int64_t> steps_of(const CheckpointStore& store) {
  std::vector<int64_t> steps;
  for (const Checkpoint& checkpoint : store.list()) {
    steps.push_back(checkpoint.step);
  }
  return steps;
}

}  // namespace lehr::state::testing
