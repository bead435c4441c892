// Gloo's collectives, with what c10d's has no good form of.
#pragma once

// The wheel has no headers of Gloo; those of Debian's libgloo-dev declare what this one needs, and the code is the
// wheel's. Only the files of the transport may include it.
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

namespace lehr::mesh {

/// c10d's reduce_scatter over Gloo is an all_reduce of everything, of which each rank drops what is not its own, and
/// its work never says that it is done. Here each rank sends the others their chunks and adds up what it gets.
class GlooBackend : public c10d::ProcessGroupGloo {
 public:
  using c10d::ProcessGroupGloo::ProcessGroupGloo;

  /// Sums in the order of ranks, as ranks that are threads do. Any other operation is c10d's.
  c10::intrusive_ptr<c10d::Work> _reduce_scatter_base(
      at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& options) override;

  /// Breaks all connections, so that waits on other threads end.
  void disconnect() noexcept;
};

}  // namespace lehr::mesh
