// Recorded batches, with a recorder on the host that keeps result tensors in place, as a CUDA graph does, and runs the
// work again at each replay. This tests the code around a recording. The order on streams is tested in
// test/ops/recorded_work_test.cpp; CUDA's capture and memory pools are not tested.
#include "lehr/train/step_graph.h"

#include <gmock/gmock.h>

#include "lehr/base/error.h"
#include "lehr/nn/swiglu.h"
#include "test/train/support.h"

namespace lehr::train {
namespace {
using testing::Folder;
using ::testing::HasSubstr;
using ::testing::Throws;
using testing::tiny_run;

class OnHost final : public ops::RecordedWork {
 public:
  explicit OnHost(const ops::Work& work) : RecordedWork(work()), work_(work) {
    for (const at::Tensor& tensor : made()) {
      if (tensor.defined()) {
        tensor.fill_(-1e9);  // no results before the first replay
      }
    }
  }
  void replay() override {
    ++replays;
    const auto now = work_();
    for (size_t i = 0; i < now.size(); ++i) {
      if (now[i].defined()) {
        made()[i].copy_(now[i]);
      }
    }
  }
  static inline int replays = 0;

 private:
  ops::Work work_;
};

class HostRecorder final : public ops::WorkRecorder {
 public:
  void warm_up(const std::function<void()>& work) override {
    log.emplace_back("warm-up");
    work();
  }
  std::unique_ptr<ops::RecordedWork> record(const ops::Work& work) override {
    log.emplace_back("record");
    return std::make_unique<OnHost>(work);
  }
  std::vector<std::string> log;
};

ops::Recorder host_recorder() {
  return std::make_shared<HostRecorder>();
}

Batch batch_of(int64_t rows, int64_t step) {
  return {{"x", at::randn({rows, 4}, at::TensorOptions(at::kDouble)) + static_cast<double>(step)}};
}

class RecordedBatches : public ::testing::Test {
 protected:
  RecordedBatches() : block_(4, 6) {
    at::manual_seed(1);
    OnHost::replays = 0;
    nn::materialize(*block_, at::kCPU, at::kDouble);
    block_->reset_parameters({.seed = 1});
  }

  StepGraph::Sums run(const Batch& batch, const at::Tensor& valid) {
    const at::Tensor sum = block_(batch.at("x")).square().sum();
    const at::Tensor loss = sum / valid;
    loss.backward();
    return {loss.detach(), {{"sum", sum.detach()}}};
  }

  std::vector<at::Tensor> take_gradients() {
    std::vector<at::Tensor> gradients;
    for (const auto& [name, parameter] : nn::named_parameters(*block_)) {
      at::Tensor value = parameter->value();
      gradients.push_back(value.grad().clone());
      value.mutable_grad().reset();
    }
    return gradients;
  }

  nn::SwiGLU block_;
};

TEST_F(RecordedBatches, HaveTheSumsAndGradientsOfEveryBatch) {
  StepGraph graph(nn::named_parameters(*block_), host_recorder(), [&](const Batch& batch, const at::Tensor& valid) {
    return run(batch, valid);
  });
  for (int64_t step = 1; step <= 6; ++step) {
    // One batch per step at first, then several, one of them with another shape.
    const std::vector<int64_t> rows = step < 4 ? std::vector<int64_t>{3} : std::vector<int64_t>{3, 3, 5, 3};
    std::vector<Batch> batches;
    for (const int64_t count : rows) {
      batches.push_back(batch_of(count, step));
    }
    std::vector<StepGraph::Sums> expected;
    for (const Batch& batch : batches) {
      expected.push_back(run(batch, at::full({}, 7.0 + static_cast<double>(step), at::kDouble)));
    }
    const auto expected_gradients = take_gradients();
    std::vector<StepGraph::Sums> found;
    for (const Batch& batch : batches) {
      found.push_back(graph(batch, 7 + step, rows.size() == 1));
    }
    const auto gradients = take_gradients();
    for (size_t i = 0; i < batches.size(); ++i) {
      EXPECT_TRUE(at::equal(found[i].loss, expected[i].loss)) << step << ", batch " << i;
      EXPECT_TRUE(at::equal(found[i].metrics.at("sum"), expected[i].metrics.at("sum"))) << step << ", batch " << i;
    }
    for (size_t i = 0; i < gradients.size(); ++i) {
      EXPECT_TRUE(at::equal(gradients[i], expected_gradients[i])) << step << ", gradient " << i;
    }
  }
  EXPECT_EQ(OnHost::replays, 1 + 3 * 3 + 1);  // all except the first two of each shape
}

TEST_F(RecordedBatches, RunWithoutRecordingForAThirdShape) {
  StepGraph graph(nn::named_parameters(*block_), host_recorder(), [&](const Batch& batch, const at::Tensor& valid) {
    return run(batch, valid);
  });
  for (int64_t i = 0; i < 4; ++i) {
    for (const int64_t rows : {1, 2, 3}) {
      const Batch batch = batch_of(rows, i);
      const at::Tensor expected = run(batch, at::full({}, 5.0, at::kDouble)).loss;
      take_gradients();
      EXPECT_TRUE(at::equal(graph(batch, 5, true).loss, expected)) << rows;
      take_gradients();
    }
  }
  EXPECT_EQ(OnHost::replays, 2 * 2);
}

TEST_F(RecordedBatches, ReportWorkThatCannotBeRecorded) {
  // The work fails in the middle, when its gradients are memory of an incomplete recording.
  struct Refuses final : ops::WorkRecorder {
    void warm_up(const std::function<void()>& work) override { work(); }
    std::unique_ptr<ops::RecordedWork> record(const ops::Work& work) override {
      recording = true;
      work();
      return nullptr;
    }
    bool recording = false;
  };
  const auto refuses = std::make_shared<Refuses>();
  StepGraph graph(nn::named_parameters(*block_), refuses, [&](const Batch& batch, const at::Tensor& valid) {
    const auto sums = run(batch, valid);
    if (refuses->recording) {
      throw std::runtime_error("operation not permitted when stream is capturing");
    }
    return sums;
  });
  graph(batch_of(2, 0), 1, true);
  graph(batch_of(2, 0), 1, true);
  EXPECT_THAT(
      [&] { graph(batch_of(2, 0), 1, true); },
      Throws<Error>(::testing::Property(
          &Error::what, ::testing::AllOf(HasSubstr("training.cuda_graphs: "), HasSubstr("stream is capturing")))));
  for (const auto& [name, parameter] : nn::named_parameters(*block_)) {
    EXPECT_FALSE(parameter->value().grad().defined()) << name;
  }
}

TEST_F(RecordedBatches, WarmUpBeforeTheyAreRecorded) {
  const auto recorder = std::make_shared<HostRecorder>();
  StepGraph graph(nn::named_parameters(*block_), recorder, [&](const Batch& batch, const at::Tensor& valid) {
    return run(batch, valid);
  });
  for (int64_t i = 0; i < 5; ++i) {
    graph(batch_of(2, i), 1, true);
    take_gradients();
  }
  EXPECT_THAT(recorder->log, ::testing::ElementsAre("warm-up", "warm-up", "record"));
}

// An event handler may keep a gradient, or a view of it, for longer than a step.
TEST_F(RecordedBatches, KeptGradientsDoNotChange) {
  StepGraph graph(nn::named_parameters(*block_), host_recorder(), [&](const Batch& batch, const at::Tensor& valid) {
    return run(batch, valid);
  });
  std::vector<std::pair<at::Tensor, at::Tensor>> kept;  // and a copy of its numbers
  const auto parameters = nn::named_parameters(*block_);
  for (int64_t i = 0; i < 6; ++i) {
    graph(batch_of(2, i), 1, true);
    for (size_t k = 0; k < parameters.size(); ++k) {
      at::Tensor value = parameters[k].parameter->value();
      const at::Tensor gradient = value.grad();
      if ((static_cast<int64_t>(k) + i) % 2 == 0) {
        const at::Tensor view = i % 3 == 0 ? gradient : i % 3 == 1 ? gradient.t()[0] : gradient.detach().view(-1);
        kept.emplace_back(view, view.clone());
      }
      if (i == 3 && k == 0) {
        kept.back().first.add_(1);  // changes nothing else
        kept.back().second.add_(1);
      }
      value.mutable_grad().reset();
    }
    for (const auto& [gradient, numbers] : kept) {
      EXPECT_TRUE(at::equal(gradient, numbers)) << i;
    }
  }
  EXPECT_EQ(OnHost::replays, 4);
  EXPECT_GE(kept.size(), 8U);
}

// The losses and weights of some steps of a tiny model in bfloat16 with master weights, two batches per step.
std::pair<std::vector<double>, std::vector<at::Tensor>> train_steps(const ops::Recorder& recorder) {
  const Folder folder;
  Logger log("", true);
  const auto list = testing::specs();
  Trainer trainer(tiny_run(folder.path()), {.specs = list, .log = log});
  nn::Model& model = trainer.model();
  const auto optimizer = testing::default_optimizer(model);
  const CausalLMTask task;
  TrainStep step(
      model, task, *optimizer, {.local_batch_size = 2, .max_norm = 1, .compute = at::kBFloat16, .recorder = recorder});
  at::manual_seed(3);
  std::vector<double> losses;
  for (int64_t i = 1; i <= 6; ++i) {
    const at::Tensor ids = at::randint(257, {i == 5 ? 2 : 4, 17}, at::kLong);
    const Batch batch{
        {"input_ids", ids.narrow(1, 0, 16)},
        {"labels", ids.narrow(1, 1, 16).masked_fill(at::rand({ids.size(0), 16}) < 0.1 * static_cast<double>(i), -100)},
        {"position_ids", at::arange(16, at::kLong).expand({ids.size(0), 16})}};
    losses.push_back(step.run(batch, 0, i, 1.0).loss);
  }
  std::vector<at::Tensor> weights;
  for (const auto& [name, parameter] : nn::named_parameters(model)) {
    weights.push_back(parameter->value().detach().clone());
  }
  return {losses, weights};
}

TEST(RecordedStep, EqualsStepsThatAreNotRecorded) {
  const auto [losses, weights] = train_steps({});
  OnHost::replays = 0;
  const auto [recorded_losses, recorded_weights] = train_steps(host_recorder());
  EXPECT_GT(OnHost::replays, 4);
  EXPECT_EQ(recorded_losses, losses);
  for (size_t i = 0; i < weights.size(); ++i) {
    EXPECT_TRUE(at::equal(recorded_weights[i], weights[i])) << i;
  }
}

TEST(CudaGraphsOption, IsRefusedForUnsupportedRuns) {
  const Folder folder;
  TrainConfig config = tiny_run(folder.path(), {{"training.cuda_graphs", "true"}});
  const auto error = [&](at::Device device, int64_t ranks, bool experts) -> std::string {
    try {
      check_cuda_graphs(config, device, ranks, experts);
    } catch (const Error& problem) {
      return problem.what();
    }
    return "";
  };
  EXPECT_EQ(error(at::kCUDA, 1, false), "");
  EXPECT_THAT(error(at::kCPU, 1, false), HasSubstr("computes on the CPU"));
  EXPECT_THAT(error(at::kCUDA, 2, false), HasSubstr("2 ranks"));
  EXPECT_THAT(error(at::kCUDA, 1, true), HasSubstr("experts"));
  config.parallelism.fsdp_cpu_offload = true;
  EXPECT_THAT(error(at::kCUDA, 1, false), HasSubstr("parallelism.fsdp_cpu_offload"));
  config.parallelism.fsdp_cpu_offload = false;
  config.peft.dropout = 0.1;
  EXPECT_THAT(error(at::kCUDA, 1, false), HasSubstr("new masks"));
  config.training.task = TaskKind::classification;
  EXPECT_THAT(error(at::kCUDA, 1, false), HasSubstr("classifier"));
  config.training.cuda_graphs = false;
  EXPECT_EQ(error(at::kCPU, 2, true), "");
}

}  // namespace
}  // namespace lehr::train
