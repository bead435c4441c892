// The parts of local checkpoints that the machines of a run still have, and the checkpoint that is made of them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lehr/state/checkpoint.h"
#include "lehr/state/coordinator.h"

namespace lehr::train {

/// The local checkpoints of the previous start of a run, which may have had other ranks, as far as the ranks of this
/// start find them: parts that PartReplicator wrote, or a whole checkpoint that not all ranks see. All ranks construct
/// one and call its functions together.
class FoundParts {
 public:
  /// `folder` is the one that this rank sees; empty: none.
  FoundParts(std::filesystem::path folder, std::shared_ptr<state::Coordinator> coordinator);

  /// The newest step whose parts are all there, damaged or not.
  std::optional<int64_t> newest() const { return newest_; }
  /// Writes the checkpoint of newest() into `store`, on a file system that all ranks share. Each part is read by a rank
  /// whose machine has it, and compared with its checksum before anything is written (`contents` false: its size); of a
  /// damaged part the other copy is used. Returns the damage if a part has no undamaged copy: nothing is written then.
  /// Throws as state::write_checkpoint does.
  std::optional<std::string> write_to(state::CheckpointStore& store, bool contents);
  /// After that, for a run that has checkpoints up to `step` (-1: none): damaged copies that were not needed, and a
  /// later step of which parts are there, but not all of any step. The same on all ranks.
  std::vector<std::string> warnings(int64_t step) const;

 private:
  std::filesystem::path folder_of(int64_t part) const;
  std::string listed() const;
  std::vector<int64_t> mine() const;
  std::optional<std::string> drop_damaged(bool contents);
  void copy_whole(state::CheckpointStore& store) const;
  void write_parts(state::CheckpointStore& store) const;

  state::CheckpointStore found_;
  bool sees_;
  std::shared_ptr<state::Coordinator> coordinator_;
  std::optional<int64_t> newest_;
  int64_t newest_seen_ = -1;
  std::optional<std::string> lost_;
  std::vector<std::vector<int64_t>> seen_by_;  // of the newest step: by part, the ranks that see it
  bool is_whole_ = false;                      // it has one part: the whole checkpoint
  std::vector<std::string> damaged_;
};

}  // namespace lehr::train
