// The all-to-alls that send tokens to the ranks of their experts and back, in parts: the transfer of one part overlaps
// with computation on another.
#pragma once

#include <vector>

#include "lehr/mesh/group.h"

namespace lehr::shard {

/// The rows of one part, by rank of the group.
struct PartSizes {
  std::vector<int64_t> sent;
  std::vector<int64_t> received;
};

/// To the experts: sends the rows of a matrix whose parts are consecutive ranges of rows, each sorted by the rank that
/// receives it. Forward starts all transfers at once, and each wait() waits for one. In backward, the gradient of a
/// part is sent back when it is known, and they are waited for together. Computation between the constructor and wait()
/// overlaps in both passes. The group must outlive the graph.
class DispatchAllToAll {
 public:
  DispatchAllToAll(const at::Tensor& rows, const mesh::Group& group, const std::vector<PartSizes>& parts);
  ~DispatchAllToAll();
  DispatchAllToAll(const DispatchAllToAll&) = delete;
  DispatchAllToAll& operator=(const DispatchAllToAll&) = delete;
  /// Waits, and returns the received rows of a part in the order of ranks. Call it once for each part.
  at::Tensor wait(size_t part);

 private:
  c10::intrusive_ptr<torch::CustomClassHolder> exchange_;  // state that the nodes share
  std::vector<at::Tensor> arriving_;
};

/// Back to the tokens: the results of each part are sent when they are known, and waited for together. Backward starts
/// the transfers of all parts' gradients at once.
class CombineAllToAll {
 public:
  /// `parts` are those of the DispatchAllToAll: `received` rows are sent back, and `sent` rows come back.
  CombineAllToAll(const mesh::Group& group, const std::vector<PartSizes>& parts);
  /// Starts to send the rows of a part. All ranks must call it for the same parts, in the same order.
  void send(size_t part, const at::Tensor& rows);
  /// Waits, and returns the matrix in the order of the one that was sent. Call it once, after send() of all parts.
  at::Tensor wait();

 private:
  c10::intrusive_ptr<torch::CustomClassHolder> exchange_;
  std::vector<at::Tensor> sent_;  // one empty tensor per part, which links its node to that of wait()
};

}  // namespace lehr::shard
