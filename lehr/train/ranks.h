// The ranks of a run, as the training loop sees them.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lehr/mesh/distributed_context.h"
#include "lehr/mesh/transport.h"
#include "lehr/train/config.h"
#include "lehr/train/task.h"

namespace lehr::train {

/// Returns the mesh of the config in a world of that many ranks: a data_parallel_shard_degree of -1 covers the ranks
/// that the other degrees leave. Throws a usage error if the degrees do not fit.
mesh::DeviceMeshParameters mesh_of(const ParallelismConfig& config, int64_t world_size);

/// The sequences of every step that one rank processes: [first, first + count) of `global`.
struct RowShare {
  int64_t global = 0;
  int64_t first = 0;
  int64_t count = 0;
  /// All sequences.
  static RowShare all(int64_t rows) { return {.global = rows, .first = 0, .count = rows}; }
};

/// One device, or this rank's view of several. All ranks must call every function that communicates.
class Ranks {
 public:
  /// One device.
  Ranks() = default;
  /// The ranks that `transport` connects, which must outlive the object; one device if it is null or connects one rank.
  /// With parallelism.fsdp_cpu_offload one device is a mesh of one rank, whose weights are sharded over itself. Throws
  /// as mesh_of does.
  Ranks(const ParallelismConfig& config, mesh::Transport* transport);

  /// Null on one device without a mesh.
  mesh::DistributedContext* context() const { return context_.get(); }
  int64_t world_size() const { return context_ ? context_->world_size() : 1; }
  /// True on the one rank that logs, and writes data other than tensors.
  bool is_main() const { return !context_ || context_->is_main_process(); }
  /// Number of ranks with different sequences.
  int64_t data_parallel_size() const { return context_ ? context_->data_parallel_size() : 1; }

  /// Returns this rank's share of `global` sequences. Throws a usage error if the ranks cannot share them evenly.
  RowShare share(int64_t global) const;
  /// Returns the positions of the sequences that this rank computes. Context parallelism shards the positions;
  /// otherwise they are all positions, padded to a multiple of the tp ranks if needed. Tensors of two dimensions or
  /// more are sharded and padded in dimension 1; others are unchanged. Without context parallelism the result has
  /// `sequence_ends` of document_ids and attention_mask (ops/attention/attention_sequences.h), if one of these exists
  /// and they are on the CPU. With it the result has position_ids: 0, 1, 2, ... of each sequence if `rows` have none.
  Batch positions_of(const Batch& rows) const;

  /// Number of ranks that each compute a part of the positions between the blocks of a layer (sequence parallelism).
  int64_t sequence_parts() const { return context_ ? context_->size(mesh::axis::tp) : 1; }
  /// Returns the `number` of the main rank.
  int64_t of_main(int64_t number) const;
  /// Sums each count over the ranks with different sequences.
  void sum_over_rows(std::vector<int64_t>& counts) const;
  /// Sums each number over the ranks with different sequences or positions: for counts of a rank's own tokens.
  void sum_over_tokens(std::vector<double>& numbers) const;
  /// Sums over all ranks, in place and on the tensor's device: the host does not wait. If several ranks hold the same
  /// value, one of them must contribute it, and the others zeros.
  void sum_over_world(const at::Tensor& numbers) const;
  /// Returns the `numbers` of all ranks as the rows of a float64 tensor, in rank order. Each rank has as many.
  at::Tensor gather(const std::vector<double>& numbers) const;
  /// True if this rank contributes counts of its tokens: on the first rank of tensor parallelism.
  bool counts_tokens() const;
  /// True if it contributes counts of whole sequences: also only on the first rank of context parallelism.
  bool counts_rows() const;
  /// True if it contributes figures of its process: of ranks that are threads of one process, only the first.
  bool counts_process() const;
  /// Replaces each number by the highest of all ranks.
  void highest(std::vector<int64_t>& numbers) const;
  /// Returns whether `here` is true on any rank.
  bool any(bool here) const;
  /// Sets the description of this rank's work, such as "step 12", for messages about a hang and for reports.
  void set_doing(const std::string& doing) const;
  /// Runs `work` on the main rank first, and then on the others, which use the files that it leaves on the disk. An
  /// exception of the main rank's `work` is thrown on all ranks.
  void main_first(const std::function<void()>& work) const;
  /// Calls `make` on the main rank only. All ranks return its result, or throw its exception. `what` names it in
  /// errors.
  std::string from_main(const std::string& what, const std::function<std::string()>& make) const;
  /// Throws a usage error on ranks whose text differs from the main rank's, with the first line that differs.
  void require_same(const std::string& what, const std::string& text) const;

 private:
  std::unique_ptr<mesh::Transport> own_transport_;  // of a mesh of one rank
  std::unique_ptr<mesh::DistributedContext> context_;
};

}  // namespace lehr::train
