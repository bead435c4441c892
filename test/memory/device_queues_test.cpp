// Side streams, asynchronous copies to the host and staged copies, on a fake device that records its work. Random
// programs that keep the rules have all work in order and the right bytes; leaving out any one kind of step is
// detected.
#include "lehr/memory/device_queues.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <map>
#include <random>

#include "lehr/base/error.h"
#include "lehr/memory/async_copy.h"
#include "lehr/memory/side_stream.h"
#include "lehr/memory/staged_copy.h"
#include "test/base/fake_queues.h"

namespace lehr {
namespace {
using ::testing::Each;
using testing::FakeQueues;
using testing::HappensBefore;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::Throws;

// Compares the vector clocks with a path search in the graph of all pieces of work.
TEST(HappensBeforeModel, FindsTheRacesThatASearchOfTheGraphFinds) {
  int64_t races = 0;
  for (unsigned seed = 0; seed < 300; ++seed) {
    std::mt19937 random(seed);
    const auto pick = [&](int64_t below) { return static_cast<int64_t>(random() % static_cast<uint64_t>(below)); };
    struct Piece {
      int64_t timeline;
      int64_t memory;
      bool writes;
      std::vector<size_t> behind;
    };
    HappensBefore order;
    std::vector<Piece> pieces;
    std::map<int64_t, std::vector<size_t>> last;  // the work that the next piece of a timeline comes after
    std::vector<std::pair<HappensBefore::Clock, std::vector<size_t>>> marks;
    const std::vector<char> memories(3);
    size_t expected = 0;
    for (int64_t i = 0; i < 40; ++i) {
      const int64_t timeline = pick(4) - 1;
      switch (pick(4)) {
        case 0:
          marks.emplace_back(order.mark(timeline), last[timeline]);
          break;
        case 1:
          if (!marks.empty()) {
            const auto& mark = marks[static_cast<size_t>(pick(static_cast<int64_t>(marks.size())))];
            order.wait(timeline, mark.first);
            last[timeline].insert(last[timeline].end(), mark.second.begin(), mark.second.end());
          }
          break;
        default: {
          Piece piece{timeline, pick(3), pick(3) == 0, last[timeline]};
          // The host submits work in its own order.
          const auto& host = last[HappensBefore::kHost];
          piece.behind.insert(piece.behind.end(), host.begin(), host.end());
          std::vector<bool> reached(pieces.size());
          std::vector<size_t> open = piece.behind;
          while (!open.empty()) {
            const size_t next = open.back();
            open.pop_back();
            if (!reached[next]) {
              reached[next] = true;
              open.insert(open.end(), pieces[next].behind.begin(), pieces[next].behind.end());
            }
          }
          size_t last_write = pieces.size();
          for (size_t k = 0; k < pieces.size(); ++k) {
            last_write = pieces[k].memory == piece.memory && pieces[k].writes ? k : last_write;
          }
          std::map<int64_t, size_t> readers;  // the last one of each timeline since the write
          for (size_t k = last_write == pieces.size() ? 0 : last_write + 1; k < pieces.size(); ++k) {
            if (pieces[k].memory == piece.memory) {
              readers[pieces[k].timeline] = k;
            }
          }
          expected += last_write < pieces.size() && !reached[last_write] ? 1 : 0;
          for (const auto& [reader, k] : readers) {
            expected += piece.writes && !reached[k] ? 1 : 0;
          }
          const void* const memory = &memories[static_cast<size_t>(piece.memory)];
          piece.writes ? order.write(timeline, memory, "w") : order.read(timeline, memory, "r");
          last[timeline] = {pieces.size()};
          pieces.push_back(piece);
        }
      }
    }
    EXPECT_EQ(order.problems().size(), expected) << seed;
    races += static_cast<int64_t>(expected);
  }
  EXPECT_GT(races, 100);
}

enum class Left { nothing, follow, join, wait, hold };

// Runs a random program of computations, side computations, copies to the host and frees, with one kind of step left
// out. Returns all problems: lines, and wrong numbers.
std::vector<std::string> run_program(unsigned seed, Left left) {
  std::mt19937 random(seed);
  const auto pick = [&](int64_t below) { return static_cast<int64_t>(random() % static_cast<uint64_t>(below)); };
  const auto queues = std::make_shared<FakeQueues>();
  SideStream side(queues);
  StagedCopy staged(queues, 256);
  std::vector<std::string> found;
  std::vector<at::Tensor> tensors;
  std::vector<double> values;  // the value of all elements of each tensor
  const auto make = [&] {
    values.push_back(static_cast<double>(pick(100)));
    tensors.push_back(at::full({1 + pick(50)}, values.back(), at::kDouble));
  };
  const auto check = [&](const at::Tensor& host, double value) {
    const auto* const data = host.const_data_ptr<double>();
    if (!std::all_of(data, data + host.numel(), [&](double element) { return element == value; })) {
      found.push_back("wrong numbers");
    }
  };
  make();
  for (int64_t i = 0; i < 40; ++i) {
    const auto chosen = static_cast<size_t>(pick(static_cast<int64_t>(tensors.size())));
    switch (pick(5)) {
      case 0:
        make();
        break;
      case 1:
        tensors[chosen].add_(1);
        values[chosen] += 1;
        break;
      case 2:  // a computation on a side stream
        if (left != Left::follow) {
          side.follow();
        }
        side.run([&] { tensors[chosen].mul_(2); });
        values[chosen] *= 2;
        if (left == Left::hold) {  // drops the last reference to it
          tensors.erase(tensors.begin() + static_cast<int64_t>(chosen));
          values.erase(values.begin() + static_cast<int64_t>(chosen));
          make();
        }
        if (left != Left::join) {
          side.join();
        }
        break;
      case 3: {
        const AsyncCopy copy(tensors[chosen], queues);
        const double value = values[chosen];
        tensors[chosen].add_(1);
        values[chosen] += 1;
        const at::Tensor there = copy.wait();
        check(there, value);
        break;
      }
      default: {
        const at::Tensor target = at::empty_like(tensors[chosen]);
        if (left != Left::follow) {
          staged.follow();
        }
        staged.copy(target, tensors[chosen]);
        if (left == Left::wait) {
          tensors[chosen].add_(1);
          values[chosen] += 1;
          staged.finish();
        } else {
          staged.finish();
          check(target, values[chosen]);
        }
      }
    }
    if (tensors.size() > 6) {
      tensors.erase(tensors.begin());
      values.erase(values.begin());
    }
  }
  const auto problems = queues->problems();
  found.insert(found.end(), problems.begin(), problems.end());
  return found;
}

TEST(DeviceQueues, RunRandomProgramsInOrder) {
  for (unsigned seed = 0; seed < 60; ++seed) {
    EXPECT_THAT(run_program(seed, Left::nothing), IsEmpty()) << seed;
  }
}

TEST(DeviceQueues, DetectAStepThatIsLeftOut) {
  for (const Left left : {Left::follow, Left::join, Left::wait, Left::hold}) {
    for (unsigned seed = 0; seed < 20; ++seed) {
      EXPECT_THAT(run_program(seed, left), Not(IsEmpty())) << static_cast<int>(left) << ", " << seed;
    }
  }
}

TEST(AsyncCopy, HasNoDataBeforeTheWait) {
  const auto queues = std::make_shared<FakeQueues>();
  const at::Tensor tensor = at::ones({4});
  const AsyncCopy copy(tensor, queues);
  // Read by pointer: the device makes the copy before it runs an operator on its own tensors.
  const auto* const data = copy.wait().const_data_ptr<float>();
  EXPECT_THAT(std::vector<float>(data, data + 4), Each(1));
}

TEST(StagedCopy, CopiesTensorsOfAnySizeTypeAndLayoutThroughItsBuffers) {
  const auto queues = std::make_shared<FakeQueues>();
  StagedCopy staged(queues, 1024);
  const std::vector<at::Tensor> sources = {
      at::randn({1000}),
      at::randn({40, 30}).t(),
      at::randn({7, 3}, at::kDouble).narrow(0, 2, 4),
      at::empty({0, 5}),
      at::full({}, 3, at::kLong),
      at::randn({129}).to(at::kBFloat16),
      at::arange(257, at::kChar)};
  for (int round = 0; round < 2; ++round) {
    std::vector<at::Tensor> targets;
    staged.follow();
    for (const at::Tensor& source : sources) {
      targets.push_back(at::empty(source.sizes(), source.options()));
      staged.copy(targets.back(), source);
    }
    // A tensor that is converted.
    targets.push_back(at::empty({1000}, at::kBFloat16));
    staged.copy(targets.back(), sources[0]);
    staged.finish();
    for (size_t i = 0; i < sources.size(); ++i) {
      EXPECT_TRUE(at::equal(targets[i], sources[i])) << i;
    }
    EXPECT_TRUE(at::equal(targets.back(), sources[0].to(at::kBFloat16)));
  }
  EXPECT_EQ(queues->pinned_bytes(), 1024);
  EXPECT_GT(queues->copies(), 20);
  EXPECT_THAT(queues->problems(), IsEmpty());
}

TEST(StagedCopy, RefusesMemoryThatLibTorchWouldRoundUp) {
  EXPECT_THAT(
      [] { StagedCopy(nullptr, 1000); },
      Throws<Error>(::testing::Property(&Error::what, HasSubstr("expected a power of two from 64 bytes on"))));
}

TEST(DeviceQueues, DoNotExistOnTheCpu) {
  EXPECT_EQ(device_queues(at::kCPU), nullptr);
  EXPECT_EQ(device_queues(at::kMeta), nullptr);
  const at::Tensor tensor = at::ones({2});
  EXPECT_TRUE(AsyncCopy(tensor).wait().is_alias_of(tensor));
  SideStream side(at::kCPU);
  side.follow();
  side.run([&] { tensor.add_(1); });
  side.join();
  side.wait();
  EXPECT_TRUE(at::equal(tensor, at::full({2}, 2.0F)));
}

}  // namespace
}  // namespace lehr
