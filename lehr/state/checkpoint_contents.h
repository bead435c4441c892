// What goes into a checkpoint, and writing it: one rank alone, or many that each write their part of the same files.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lehr/base/box.h"
#include "lehr/state/checkpoint.h"
#include "lehr/state/coordinator.h"
#include "lehr/state/safetensors_writer.h"

namespace lehr::state {

/// The elements `box` of a stored tensor.
struct TensorPart {
  std::string name;
  Box box;
  at::Tensor tensor;  ///< Of the box's shape.
};

/// Tensors that go to `stem`.safetensors, or its shards and index.
struct WeightSet {
  std::string stem = "model";  ///< "model", "optimizer"
  NamedTensors tensors;
  std::optional<at::ScalarType> dtype = std::nullopt;  ///< Of the floating-point ones in the file; none: their own.
  int64_t max_shard_bytes = kDefaultMaxShardBytes;

  /// Where ranks hold parts: all tensors of all ranks, with the types of the files and whole shapes, the same list on
  /// every rank. Empty: `tensors` are all there is.
  std::vector<TensorInfo> all = {};
  /// What this rank writes of them beside `tensors`, perhaps nothing. Over all ranks every element comes once.
  std::vector<TensorPart> parts = {};
};

/// A checkpoint to be. File names are relative to its folder and may name folders in it. Of many ranks the main one
/// writes texts and copies; the others need not have them.
struct CheckpointContents {
  int64_t step = 0;
  std::vector<WeightSet> weights;
  std::vector<std::pair<std::string, std::string>> texts = {};             ///< Name and content.
  std::vector<std::pair<std::string, std::filesystem::path>> copies = {};  ///< Name and the file to be copied.
  /// What ranks wait for files that the main one has made: shared file systems may show them late.
  std::chrono::milliseconds patience = std::chrono::seconds(20);
};

/// Throws a usage error that names what could not be written: names that leave the folder or occur twice, tensors that
/// no file can hold.
void check(const CheckpointContents& contents);

/// Bytes of all tensors as they will be stored.
int64_t num_bytes(const CheckpointContents& contents);

/// Writes the checkpoint and makes it visible. Throws runtime errors where the disk is at fault; what was written is
/// then removed, and all other checkpoints stand.
void write_checkpoint(CheckpointStore& store, const CheckpointContents& contents);

/// The same of many ranks, which all call it with their parts, on any thread: the main rank makes the files, every rank
/// writes its byte ranges and puts them on the disk, and when all have reported that, and every byte of every file was
/// written once, the main rank publishes the checkpoint. Throws one error on all ranks if something fails on any, or if
/// any was given a `failure` that came before. The folder must be on a file system that all ranks see.
///
/// Beside the tensors' files stands integrity.json (state/integrity.h).
void write_checkpoint(
    CheckpointStore& store,
    const CheckpointContents& contents,
    Coordinator& coordinator,
    const std::string& failure = "");

}  // namespace lehr::state
