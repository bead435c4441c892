// The contents of a checkpoint, and writing it: by one rank alone, or by many that each write their part of shared
// files.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "lehr/base/box.h"
#include "lehr/state/checkpoint.h"
#include "lehr/state/coordinator.h"
#include "lehr/state/safetensors_writer.h"

namespace lehr::state {

/// A region `box` of a stored tensor.
struct TensorPart {
  std::string name;
  Box box;
  at::Tensor tensor;  ///< Has the shape of the box.
};

/// Tensors of `stem`.safetensors, or of its shards and index.
struct WeightSet {
  std::string stem = "model";  ///< "model", "optimizer"
  NamedTensors tensors;
  std::optional<at::ScalarType> dtype = std::nullopt;  ///< Stored dtype of floating-point tensors; unset: their own.
  int64_t max_shard_bytes = kDefaultMaxShardBytes;

  /// For sharded tensors: all tensors of all ranks, with stored dtypes and global shapes, the same list on every rank.
  /// Empty: `tensors` is complete.
  std::vector<TensorInfo> all = {};
  /// Parts of `all` that this rank writes in addition to `tensors`, possibly none. Over all ranks every element occurs
  /// exactly once.
  std::vector<TensorPart> parts = {};
};

/// A checkpoint to be written. File names are relative to its folder and may contain subfolders. With many ranks, the
/// main rank writes texts and copies; the others may leave them empty.
struct CheckpointContents {
  int64_t step = 0;
  std::vector<WeightSet> weights;
  std::vector<std::pair<std::string, std::string>> texts = {};             ///< Name and content.
  std::vector<std::pair<std::string, std::filesystem::path>> copies = {};  ///< Name, and the file to copy.
  /// Names among `texts` that integrity.json covers, like the tensors: those that nobody but a run should write.
  std::set<std::string> checked_texts = {};
  /// Time that ranks wait for files created by the main rank: shared file systems may show them late.
  std::chrono::milliseconds patience = std::chrono::seconds(20);
};

/// Throws a usage error that names the problem: file names outside the folder or duplicated, tensors that no file can
/// hold.
void check(const CheckpointContents& contents);

/// Returns the bytes of all tensors as stored.
int64_t num_bytes(const CheckpointContents& contents);

/// Writes the checkpoint and publishes it. Throws runtime errors for disk failures; the unfinished checkpoint is then
/// removed, and all others are kept.
void write_checkpoint(CheckpointStore& store, const CheckpointContents& contents);

/// Writes a checkpoint from many ranks. All ranks call it with their parts, on any thread: the main rank creates the
/// files, every rank writes its byte ranges and syncs them, and once all ranks have reported this, and every byte of
/// every file was written exactly once, the main rank publishes the checkpoint. If something fails on any rank, or any
/// rank passed an earlier `failure`, all ranks throw the same error. The folder must be on a file system that all ranks
/// share.
///
/// Also writes integrity.json (state/integrity.h).
void write_checkpoint(
    CheckpointStore& store,
    const CheckpointContents& contents,
    Coordinator& coordinator,
    const std::string& failure = "");

}  // namespace lehr::state
