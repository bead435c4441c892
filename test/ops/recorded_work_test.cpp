// Recordings on a fake device that records its work (test/base/fake_queues.h), with graph functions that keep a log:
// the streams of warm-ups and captures, operations that they must not do, and the end of a capture that fails.
#include "lehr/ops/recorded_work.h"

#include <gmock/gmock.h>

#include <random>

#include "lehr/base/error.h"
#include "lehr/memory/side_stream.h"
#include "test/base/fake_queues.h"

namespace lehr::ops {
namespace {
using ::testing::ElementsAre;
using testing::FakeQueues;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Throws;

// Graphs are numbers; a test has one device at a time.
struct Graphs {
  std::shared_ptr<FakeQueues> queues = std::make_shared<FakeQueues>();
  std::vector<std::string> log;
  int64_t alive = 0;
  std::vector<FakeQueues::GraphUse> uses;  // of the last graph
  bool end_fails = false;

  Graphs() { active = this; }
  ~Graphs() { active = nullptr; }
  Graphs(const Graphs&) = delete;
  Graphs& operator=(const Graphs&) = delete;

  static inline Graphs* active = nullptr;
  static cuda::GraphFunctions functions() {
    return {
        .begin = []() -> void* {
          active->queues->begin_capture();
          active->log.push_back(fmt::format("begin on {}", active->queues->current_id()));
          ++active->alive;
          return active;
        },
        .end =
            [](void*) {
              active->uses = active->queues->end_capture();
              if (active->end_fails) {
                throw std::runtime_error("out of memory");
              }
              active->log.emplace_back("end");
            },
        .abandon =
            [](void*) {
              if (active->queues->capturing()) {
                try {
                  active->queues->end_capture();
                } catch (const std::exception&) {
                }
              }
              active->log.emplace_back("abandon");
              --active->alive;
            },
        .replay =
            [](void*) {
              active->queues->replay(active->uses);
              active->log.push_back(fmt::format("replay on {}", active->queues->current_id()));
            },
        .destroy =
            [](void*) {
              active->log.emplace_back("destroy");
              --active->alive;
            }};
  }
};

class GraphRecorderTest : public ::testing::Test {
 protected:
  // The work of a step: it reads a weight of the current stream, and uses a library.
  std::vector<at::Tensor> step() {
    graphs_.queues->use_library();
    return {weight_ * 2};
  }

  Graphs graphs_;
  cuda::GraphFunctions functions_ = Graphs::functions();
  GraphRecorder recorder_{graphs_.queues, functions_};
  at::Tensor weight_ = at::ones({8});
};

TEST_F(GraphRecorderTest, WarmsUpOnTheRecordingStreamAndReplaysOnTheCurrentStream) {
  std::vector<int64_t> streams;
  std::vector<at::Tensor> made;
  for (int i = 0; i < 2; ++i) {
    recorder_.warm_up([&] {
      streams.push_back(graphs_.queues->current_id());
      made = step();
    });
    made[0].add_(weight_);  // the current stream continues with the results
    weight_.add_(1);
  }
  {
    const auto recorded = recorder_.record([&] {
      streams.push_back(graphs_.queues->current_id());
      return step();
    });
    EXPECT_THAT(streams, ElementsAre(1, 1, 1));
    EXPECT_EQ(graphs_.queues->current_id(), 0);
    recorded->replay();
    EXPECT_EQ(graphs_.alive, 1);
  }
  EXPECT_THAT(graphs_.log, ElementsAre("begin on 1", "end", "replay on 0", "destroy"));
  EXPECT_EQ(graphs_.alive, 0);
  EXPECT_THAT(graphs_.queues->problems(), IsEmpty());
}

TEST_F(GraphRecorderTest, DetectsALibraryThatWasNotWarmedUpOnTheRecordingStream) {
  step();  // on the current stream
  const auto recorded = recorder_.record([&] { return step(); });
  EXPECT_THAT(graphs_.queues->problems(), ElementsAre("a library asks for its memory of stream 1 in a capture"));
}

TEST_F(GraphRecorderTest, AbandonsACaptureThatFailsAndContinues) {
  SideStream beside(graphs_.queues);
  recorder_.warm_up([&] { step(); });
  const auto throws_with = [&](const Work& work, const char* what) {
    EXPECT_THAT(
        [&] { recorder_.record(work); },
        Throws<std::exception>(::testing::Property(&std::exception::what, HasSubstr(what))));
    EXPECT_FALSE(graphs_.queues->capturing());
    EXPECT_EQ(graphs_.alive, 0);
    EXPECT_EQ(graphs_.log.back(), "abandon");
    // An unrecorded step, and the next recording.
    std::vector<at::Tensor> made;
    recorder_.warm_up([&] { made = step(); });
    EXPECT_EQ(made[0].item<float>(), 2) << what;
  };
  weight_ = at::ones({1});
  throws_with([&]() -> std::vector<at::Tensor> { fail_runtime("the work's own"); }, "the work's own");
  // The host reads a number.
  throws_with(
      [&] {
        auto made = step();
        made[0].item<float>();
        return made;
      },
      "_local_scalar_dense: operation not permitted when stream is capturing");
  // Work on another stream that is not joined.
  throws_with(
      [&] {
        auto made = step();
        beside.follow();
        beside.run([&] { made[0].add_(1); });
        return made;
      },
      "was not joined to the capturing one");
  graphs_.end_fails = true;  // the graph cannot be created
  throws_with([&] { return step(); }, "out of memory");
  graphs_.end_fails = false;
  EXPECT_THAT(graphs_.queues->problems(), IsEmpty());
  const auto recorded = recorder_.record([&] { return step(); });
  EXPECT_EQ(graphs_.log.back(), "end");
}

// Steps as in TrainStep around a recorder, in random order.
TEST_F(GraphRecorderTest, RunsRandomStepsInOrder) {
  for (unsigned seed = 0; seed < 60; ++seed) {
    std::mt19937 random(seed);
    SideStream copies(graphs_.queues);
    at::Tensor gradient;
    std::unique_ptr<RecordedWork> recorded;
    recorder_.warm_up([&] { step(); });
    for (int i = 0; i < 30; ++i) {
      switch (random() % 6) {
        case 0:
          recorder_.warm_up([&] { gradient = step()[0]; });
          break;
        case 1:
          recorded = recorder_.record([&] { return step(); });
          break;
        case 2:
          if (recorded) {
            recorded->replay();
          }
          break;
        case 3:
          gradient = weight_ * 3;
          break;
        case 4:
          copies.follow();
          copies.run([&] { static_cast<void>(weight_.sum()); });
          copies.join();
          break;
        default:
          if (gradient.defined()) {
            weight_.sub_(gradient, 0.5);
            gradient.reset();
          }
      }
    }
  }
  EXPECT_THAT(graphs_.queues->problems(), IsEmpty());
}

}  // namespace
}  // namespace lehr::ops
