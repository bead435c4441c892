// The ranks along one or more axes of the mesh, and the collectives among them.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lehr/base/torch.h"

namespace c10d {
class Backend;
class Work;
}  // namespace c10d

namespace lehr::mesh {

class Group;
class Watchdog;

/// A started collective.
class Pending {
 public:
  Pending();
  /// `group` must outlive it; `ticket` is that of the watchdog's log, if the group has one. `message`: true for a send
  /// or receive.
  Pending(
      const Group& group,
      std::string what,
      int64_t ticket,
      bool message,
      c10::intrusive_ptr<c10d::Work> work,
      std::vector<at::Tensor> alive);
  Pending(Pending&&) noexcept;
  Pending& operator=(Pending&&) noexcept;
  ~Pending();
  /// Returns when the result may be used (on CUDA: by the current stream). Throws a runtime error that names the
  /// collective and the group if it failed or took too long (PeerFailure where the transport has a watch). A second
  /// call does nothing.
  void wait();
  explicit operator bool() const;

 private:
  const Group* group_ = nullptr;
  std::string what_;
  int64_t ticket_ = -1;
  bool message_ = false;
  c10::intrusive_ptr<c10d::Work> work_;
  std::vector<at::Tensor> alive_;  // tensors that the collective reads and writes
};

/// A group of ranks that communicate. Every member calls the same functions in the same order. In a group of one rank
/// nothing is sent and results are copies. Tensors must be contiguous, of one type and device, and, except for
/// all_to_all, of the same size on all ranks. Autograd does not record these functions; mesh/collectives.h has the
/// differentiable ones. `start_...` returns without waiting; its tensors must not be used before Pending::wait.
class Group {
 public:
  /// `ranks` are global and ascending; `backend` may be null for a group of one. `watch` may be null.
  Group(
      std::string name,
      std::vector<int64_t> ranks,
      int64_t global_rank,
      c10::intrusive_ptr<c10d::Backend> backend,
      Watchdog* watch = nullptr);
  ~Group();
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  /// The axes: "tp", "dp_shard,cp".
  const std::string& name() const { return name_; }
  int64_t size() const { return static_cast<int64_t>(ranks_.size()); }
  /// This rank's index in the group.
  int64_t rank() const { return rank_; }
  const std::vector<int64_t>& ranks() const { return ranks_; }

  /// Sums over the ranks, in place; the same bits on all of them.
  void all_reduce(at::Tensor tensor) const { start_all_reduce(std::move(tensor)).wait(); }
  Pending start_all_reduce(at::Tensor tensor) const;
  /// The elementwise maximum over the ranks, in place.
  void all_reduce_max(at::Tensor tensor) const;
  /// `output` has size() times the elements of `input`: the ranks' inputs, concatenated in the order of ranks.
  void all_gather(at::Tensor output, at::Tensor input) const { start_all_gather(output, input).wait(); }
  Pending start_all_gather(at::Tensor output, at::Tensor input) const;
  /// `input` has size() times the elements of `output`, which becomes the sum over the ranks of chunk rank() of their
  /// inputs.
  void reduce_scatter(at::Tensor output, at::Tensor input) const { start_reduce_scatter(output, input).wait(); }
  Pending start_reduce_scatter(at::Tensor output, at::Tensor input) const;
  /// Sends `input_sizes[r]` rows (of dimension 0) to rank r, in order, and receives `output_sizes[r]` rows from it.
  void all_to_all(
      at::Tensor output,
      at::Tensor input,
      const std::vector<int64_t>& output_sizes,
      const std::vector<int64_t>& input_sizes) const {
    start_all_to_all(output, input, output_sizes, input_sizes).wait();
  }
  Pending start_all_to_all(
      at::Tensor output,
      at::Tensor input,
      const std::vector<int64_t>& output_sizes,
      const std::vector<int64_t>& input_sizes) const;
  /// Copies the tensor of rank `root` of the group to all members.
  void broadcast(at::Tensor tensor, int64_t root) const;
  /// Point-to-point messages, by ranks of the group. The messages from one rank to another are received in the order in
  /// which the receives were started, whichever is waited for first.
  Pending start_send(at::Tensor tensor, int64_t to) const;
  Pending start_receive(at::Tensor tensor, int64_t from) const;
  /// Returns when all members have called it.
  void barrier() const;

  /// Seconds that this rank's host has spent in these functions, most of them waiting for the other members.
  double seconds_waited() const { return static_cast<double>(nanoseconds_waited_) * 1e-9; }

 private:
  friend class Pending;
  class Waiting;
  // `peer` is the other rank of a message within the group; -1 for a collective.
  template <class Start>
  Pending start(const char* collective, std::vector<at::Tensor> tensors, const Start& start, int64_t peer = -1) const;

  std::string name_;
  std::vector<int64_t> ranks_;
  int64_t rank_ = 0;
  c10::intrusive_ptr<c10d::Backend> backend_;
  Watchdog* watch_ = nullptr;
  size_t watch_group_ = 0;  // this group's number in the watch's log
  mutable std::atomic<int64_t> nanoseconds_waited_ = 0;
};

}  // namespace lehr::mesh
