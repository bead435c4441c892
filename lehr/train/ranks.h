// The ranks that a run is spread over, as its loop sees them.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lehr/mesh/distributed_context.h"
#include "lehr/train/config.h"
#include "lehr/train/task.h"

namespace lehr::train {

/// The mesh that the config asks for in a world of that many ranks: a data_parallel_shard_degree of -1 takes what the
/// others leave. Throws a usage error if the degrees do not fit.
mesh::DeviceMeshParameters mesh_of(const ParallelismConfig& config, int64_t world_size);

/// The rows of every step that one rank takes: [first, first + count) of `global`.
struct RowShare {
  int64_t global = 0;
  int64_t first = 0;
  int64_t count = 0;
  /// All rows.
  static RowShare all(int64_t rows) { return {.global = rows, .first = 0, .count = rows}; }
};

/// One device, or this rank's place among many. Every function that communicates is called by all ranks alike.
class Ranks {
 public:
  /// One device.
  Ranks() = default;
  /// The ranks that `transport` connects, which must outlive the object; one device if it is null. Throws as mesh_of.
  Ranks(const ParallelismConfig& config, mesh::Transport* transport);

  /// Null on one device.
  mesh::DistributedContext* context() const { return context_.get(); }
  int64_t world_size() const { return context_ ? context_->world_size() : 1; }
  /// The one rank that speaks and writes what is no tensor.
  bool is_main() const { return !context_ || context_->is_main_process(); }
  /// Ranks that take different rows.
  int64_t data_parallel_size() const { return context_ ? context_->data_parallel_size() : 1; }

  /// This rank's share of `global` rows. Throws a usage error if the ranks cannot share them evenly.
  RowShare share(int64_t global) const;
  /// The positions of the rows that this rank computes: all, unless rows are cut by context parallelism; with padding
  /// behind them where tensor parallelism needs a multiple of its ranks. Tensors of two dimensions or more are cut and
  /// padded in dimension 1; others are as they are.
  Batch positions_of(const Batch& rows) const;

  /// The sum of each number over the ranks that take different rows.
  void sum_over_rows(std::vector<double>& numbers) const;
  /// The sum of each number over the ranks that take different rows or positions: of what each counts for its own.
  void sum_over_tokens(std::vector<double>& numbers) const;
  /// Whether it is true on any rank.
  bool any(bool here) const;
  /// Runs `work` on the main rank first and on the others when it is done: what it leaves on the disk is used by them.
  /// What `work` throws there is thrown on all.
  void main_first(const std::function<void()>& work) const;
  /// Throws a usage error on ranks whose text is not the main rank's, with the first line that differs.
  void require_same(const std::string& what, const std::string& text) const;

 private:
  std::string from_main(const std::string& what, const std::function<std::string()>& make) const;
  void sum(std::vector<double>& numbers, const mesh::Group& group) const;

  std::unique_ptr<mesh::DistributedContext> context_;
};

}  // namespace lehr::train
