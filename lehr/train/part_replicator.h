// Local checkpoints of ranks on several machines: each machine keeps the parts of its own ranks, and a copy of those of
// the machine before it, so that the loss of one machine loses no part. NVRx calls it replication.
#pragma once

#include <filesystem>
#include <memory>
#include <vector>

#include "lehr/mesh/group.h"
#include "lehr/mesh/transport.h"
#include "lehr/state/checkpoint.h"
#include "lehr/state/checkpoint_contents.h"
#include "lehr/state/coordinator.h"
#include "lehr/state/integrity.h"
#include "lehr/train/local_folder.h"

namespace lehr::train {

/// Saves the parts of all ranks. All ranks construct one together, on the thread of their collectives. It connects the
/// ranks by a group of its own, over host memory, so that save() may run on another thread while a step communicates.
class PartReplicator {
 public:
  /// Bytes per message between hosts. Each has the time limit of a collective.
  static constexpr int64_t kPieceBytes = int64_t{16} << 20;

  /// `machines` are at least two. `transport` must outlive the object.
  PartReplicator(
      Machines machines,
      mesh::Transport& transport,
      std::shared_ptr<state::Coordinator> coordinator,
      int64_t piece_bytes = kPieceBytes);

  /// Writes this rank's part of the contents into `store`, which has the same name on each machine, and copies it to a
  /// rank of the next machine. The checkpoint is published on all machines once all have their own parts and the
  /// copies, and replaces the one before once it is published on all. All ranks call it. If something fails on any
  /// rank, or a rank passed an earlier `failure`, all throw the same error; the one before is then kept.
  void save(state::CheckpointStore& store, const state::CheckpointContents& contents, const std::string& failure);

  /// Returns the bytes of the parts that this rank's machine keeps, if the part of each rank has that size: its own,
  /// and with the copies.
  struct Kept {
    int64_t own = 0;
    int64_t all = 0;
  };
  static Kept kept(const Machines& machines, const std::vector<int64_t>& bytes_of_ranks);

 private:
  class Incoming;
  void copy(const std::filesystem::path& folder, const state::FileIntegrity& mine) const;

  Machines machines_;
  std::shared_ptr<state::Coordinator> coordinator_;
  std::unique_ptr<mesh::Group> group_;
  int64_t to_ = 0;             // rank that receives this rank's part
  std::vector<int64_t> from_;  // ranks whose parts this one receives
  int64_t piece_bytes_;
};

}  // namespace lehr::train
