// Every collective of a group, once: for tests that compare transports.
#pragma once

#include <gtest/gtest.h>

#include <vector>

#include "lehr/mesh/group.h"

namespace lehr::mesh {

// Runs all collectives of a group on small whole numbers, whose sums are exact in every dtype and order.
inline std::vector<at::Tensor> every_collective(const Group& group, at::ScalarType type) {
  const int64_t size = group.size();
  const int64_t me = group.rank();
  const auto numbers = [&](int64_t count) { return (at::arange(count, at::kLong) % 5 + me).to(type); };
  std::vector<at::Tensor> results;
  at::Tensor reduced = numbers(7);
  group.all_reduce(reduced);
  results.push_back(reduced);
  at::Tensor largest = numbers(3);
  group.all_reduce_max(largest);
  results.push_back(largest);
  at::Tensor gathered = at::empty({5 * size}, type);
  group.all_gather(gathered, numbers(5));
  results.push_back(gathered);
  at::Tensor scattered = at::empty({2}, type);
  group.reduce_scatter(scattered, numbers(2 * size));
  results.push_back(scattered);
  // Rank r sends r rows to each rank.
  std::vector<int64_t> from;
  for (int64_t rank = 0; rank < size; ++rank) {
    from.push_back(rank);
  }
  at::Tensor exchanged = at::empty({size * (size - 1) / 2, 2}, type);
  group.all_to_all(
      exchanged,
      numbers(2 * me * size).view({me * size, 2}),
      from,
      std::vector<int64_t>(static_cast<size_t>(size), me));
  results.push_back(exchanged);
  at::Tensor sent = numbers(4);
  group.broadcast(sent, size - 1);
  results.push_back(sent);
  at::Tensor received = at::empty({4}, type);
  Pending sending = group.start_send(numbers(4), (me + 1) % size);
  Pending receiving = group.start_receive(received, (me + size - 1) % size);
  receiving.wait();
  sending.wait();
  results.push_back(received);
  // Two collectives in flight, waited for in reverse order.
  at::Tensor first = numbers(3), second = numbers(6);
  Pending one = group.start_all_reduce(first);
  Pending two = group.start_all_reduce(second);
  two.wait();
  one.wait();
  results.push_back(first);
  results.push_back(second);
  group.barrier();
  return results;
}

// Compares the results of two transports bit for bit.
inline void expect_equal(const std::vector<at::Tensor>& found, const std::vector<at::Tensor>& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) {
    EXPECT_TRUE(at::equal(found[i], expected[i])) << c10::toString(found[i].scalar_type()) << ", collective " << i;
  }
}

}  // namespace lehr::mesh
