// What goes into a checkpoint, and writing it in one go.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lehr/state/checkpoint.h"
#include "lehr/state/safetensors_writer.h"

namespace lehr::state {

/// Tensors that go to `stem`.safetensors, or its shards and index.
struct WeightSet {
  std::string stem = "model";  ///< "model", "optimizer"
  NamedTensors tensors;
  std::optional<at::ScalarType> dtype = std::nullopt;  ///< Of the floating-point ones in the file; none: their own.
  int64_t max_shard_bytes = kDefaultMaxShardBytes;
};

/// A checkpoint to be. File names are relative to its folder and may name folders in it.
struct CheckpointContents {
  int64_t step = 0;
  std::vector<WeightSet> weights;
  std::vector<std::pair<std::string, std::string>> texts = {};             ///< Name and content.
  std::vector<std::pair<std::string, std::filesystem::path>> copies = {};  ///< Name and the file to be copied.
};

/// Throws a usage error that names what could not be written: names that leave the folder or occur twice, tensors that
/// no file can hold.
void check(const CheckpointContents& contents);

/// Bytes of all tensors as they will be stored.
int64_t num_bytes(const CheckpointContents& contents);

/// Writes the checkpoint and makes it visible. Throws runtime errors where the disk is at fault; what was written is
/// then removed, and all other checkpoints stand.
void write_checkpoint(CheckpointStore& store, const CheckpointContents& contents);

}  // namespace lehr::state
