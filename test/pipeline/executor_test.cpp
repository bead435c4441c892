// The executor: every schedule has the gradients of one device. (bench/pipeline_bubble.cpp measures its time.)
#include "lehr/pipeline/executor.h"

#include <gmock/gmock.h>

#include <mutex>

#include "lehr/base/error.h"
#include "lehr/mesh/distributed_context.h"
#include "lehr/mesh/thread_transport.h"
#include "lehr/ops/linear/linear.h"
#include "lehr/ops/weight_gradients.h"
#include "lehr/pipeline/communication.h"
#include "lehr/pipeline/schedules.h"
#include "test/base/error_of.h"

namespace lehr::pipeline {
namespace {

using ::testing::HasSubstr;

// The stage of d9d's end-to-end case: three square matrices, and a residual that every stage receives. As there,
// numbers are drawn in float32; they are computed with in float64.
struct Weights {
  at::Tensor w1, w2, w3;
  Weights() {
    torch::manual_seed(42);
    for (at::Tensor* w : {&w1, &w2, &w3}) {
      *w = (at::randn({8, 8}) / 4).to(at::kDouble).requires_grad_(true);
    }
  }
  std::vector<at::Tensor> gradients() const { return {w1.grad(), w2.grad(), w3.grad()}; }
};

class Stage : public StageRunner {
 public:
  Stage(int64_t number, int64_t stages, int64_t rows, at::Tensor x, at::Tensor y)
      : number_(number), stages_(stages), rows_(rows), x_(std::move(x)), y_(std::move(y)) {}

  TensorDict input_specs(int64_t) const override {
    return {{"x", at::empty({rows_, 8}, at::TensorOptions(at::kDouble).device(at::kMeta))}};
  }
  TensorDict output_specs(int64_t m) const override { return input_specs(m); }

  TensorDict forward(int64_t m, TensorDict inputs) override {
    Kept& kept = kept_[m];
    kept.input = number_ == 0 ? x_.narrow(0, m * rows_, rows_) : inputs.at("x").set_requires_grad(true);
    kept.wgrads = std::make_shared<ops::WeightGradients>();
    const ops::WeightGradients::Scope scope(kept.wgrads);
    const at::Tensor r = ops::linear(ops::linear(kept.input, weights.w1.t()) * 1.05, weights.w2.t());
    kept.output = ops::linear(at::gelu(r) + y_.narrow(0, m * rows_, rows_), weights.w3.t());
    if (number_ + 1 == stages_) {
      kept.output = kept.output.sum();
      loss += kept.output.item<double>();
    }
    return {{"x", kept.output.detach()}};
  }
  TensorDict backward(int64_t m, TensorDict gradients, bool weights_later) override {
    Kept& kept = kept_.at(m);
    const at::Tensor gradient = number_ + 1 == stages_ ? at::ones({}) : gradients.at("x");
    weights_later ? kept.wgrads->backward_input({kept.output}, {gradient}) : kept.output.backward(gradient);
    TensorDict result;
    if (number_ > 0) {
      result["x"] = kept.input.grad();
    }
    kept.output.reset();
    kept.input.reset();
    if (!weights_later) {
      kept_.erase(m);
    }
    return result;
  }
  void backward_weight(int64_t m) override {
    kept_.at(m).wgrads->backward_weight();
    kept_.erase(m);
  }
  bool nothing_kept() const { return kept_.empty(); }

  Weights weights;
  double loss = 0;

 private:
  struct Kept {
    at::Tensor input, output;
    std::shared_ptr<ops::WeightGradients> wgrads;
  };
  int64_t number_, stages_, rows_;
  at::Tensor x_, y_;
  std::map<int64_t, Kept> kept_;
};

// Runs a program on threads; `make` returns the runner of a stage.
void on_ranks(
    const Program& program,
    const std::function<std::unique_ptr<StageRunner>(int64_t stage)>& make,
    const std::function<void(int64_t stage, StageRunner& runner)>& look) {
  mesh::run_ranks(
      program.num_ranks(),
      [&](mesh::Transport& transport) {
        mesh::DistributedContext context({.pipeline_parallel = program.num_ranks()}, transport);
        const mesh::Group& pp = context.group(mesh::axis::pp);
        std::map<int64_t, std::unique_ptr<StageRunner>> owned;
        std::map<int64_t, StageRunner*> runners;
        for (const int64_t stage : program.stages_of(pp.rank())) {
          owned[stage] = make(stage);
          runners[stage] = owned[stage].get();
        }
        run_program(program, pp.rank(), &pp, runners);
        for (const auto& [stage, runner] : owned) {
          look(stage, *runner);
        }
      },
      std::chrono::seconds(60));
}

// The result of one device: the whole batch through all stages, in plain ATen.
struct OneDevice {
  double loss = 0;
  std::vector<std::vector<at::Tensor>> gradients;  // by stage: w1, w2, w3
};

OneDevice on_one_device(int64_t stages, const at::Tensor& x, const at::Tensor& y) {
  const std::vector<Weights> weights(static_cast<size_t>(stages));
  at::Tensor hidden = x;
  for (const auto& [w1, w2, w3] : weights) {
    hidden = (at::gelu((hidden.mm(w1) * 1.05).mm(w2)) + y).mm(w3);
  }
  const at::Tensor loss = hidden.sum();
  loss.backward();
  OneDevice result{.loss = loss.item<double>(), .gradients = {}};
  for (const Weights& stage : weights) {
    result.gradients.push_back(stage.gradients());
  }
  return result;
}

struct Golden {
  int64_t stages;
  double loss;
  std::vector<std::vector<double>> sums;  // of absolute gradients, by stage: w1, w2, w3
};

// From d9d's test suite (and its tolerance: rtol 1e-3), computed there in float32; of four and of eight stages, the
// values of the first two.
const std::vector<Golden> kGolden{
    {1, -11.7502, {{371.786, 474.551, 718.381}}},
    {2, -10.7873, {{60.258, 87.466, 381.04}, {377.552, 443.844, 664.066}}},
    {4, -12.6306, {{2.445, 3.933, 22.587}, {26.945, 32.667, 67.218}}},
    {8, -12.969, {{.009, .016, .091}, {.121, .172, .249}}}};

// Sums over micro-batches have another order than sums over the batch, which costs some 1e-16 for each of 128 terms:
// relative to the largest element of a gradient, 1e-12 is a safe bound.
constexpr double kTolerance = 1e-12;

// One device is compared with the published numbers, and every schedule with each element of one device.
TEST(Executor, EveryScheduleHasTheGradientsOfThePublishedCase) {
  torch::manual_seed(4242);
  const at::Tensor x = at::randn({128, 8}).to(at::kDouble);
  const at::Tensor y = at::randn({128, 8}).to(at::kDouble);
  ASSERT_NEAR(x[0][0].item<double>(), .40564063, 1e-6);
  ASSERT_NEAR(y[0][2].item<double>(), -.41586486, 1e-6);
  for (const Golden& golden : kGolden) {
    const OneDevice expected = on_one_device(golden.stages, x, y);
    EXPECT_NEAR(expected.loss, golden.loss, 1e-3 * std::abs(golden.loss));
    for (size_t stage = 0; stage < golden.sums.size(); ++stage) {
      for (size_t i = 0; i < 3; ++i) {
        const double sum = expected.gradients[stage][i].abs().sum().item<double>();
        // The published numbers of eight stages have only three digits.
        EXPECT_NEAR(sum, golden.sums[stage][i], 1e-3 * golden.sums[stage][i] + 5e-4) << stage << " w" << i + 1;
      }
    }
    for (const ScheduleInfo& info : all_schedules()) {
      if (!info.has_backward || golden.stages % info.min_stages_per_rank != 0) {
        continue;
      }
      const int64_t per_rank = info.min_stages_per_rank;
      const int64_t ranks = golden.stages / per_rank;
      for (const int64_t microbatches : {8, 16, 32}) {
        SCOPED_TRACE(fmt::format("{} {} stages {} micro-batches", info.name, golden.stages, microbatches));
        const Program program = add_communication(build_program(
            {.schedule = info.schedule,
             .num_ranks = ranks,
             .num_stages_per_rank = per_rank,
             .num_microbatches = microbatches}));
        std::mutex mutex;
        double loss = 0;
        on_ranks(
            program,
            [&](int64_t stage) {
              const std::lock_guard lock(mutex);  // the random seed belongs to the process
              return std::make_unique<Stage>(stage, golden.stages, 128 / microbatches, x, y);
            },
            [&](int64_t stage, StageRunner& runner) {
              const auto& done = dynamic_cast<const Stage&>(runner);
              const std::lock_guard lock(mutex);
              loss += done.loss;
              EXPECT_TRUE(done.nothing_kept());
              const auto& wanted = expected.gradients[static_cast<size_t>(stage)];
              const auto found = done.weights.gradients();
              for (size_t i = 0; i < 3; ++i) {
                const double error = (found[i] - wanted[i]).abs().max().item<double>();
                EXPECT_LE(error, kTolerance * wanted[i].abs().max().item<double>()) << stage << " w" << i + 1;
              }
            });
        EXPECT_NEAR(loss, expected.loss, kTolerance * std::abs(expected.loss));
      }
    }
  }
}

// A stage that computes nothing.
class Idle : public StageRunner {
 public:
  TensorDict input_specs(int64_t) const override {
    return {{"x", at::empty({1}, at::TensorOptions().device(at::kMeta))}};
  }
  TensorDict output_specs(int64_t m) const override { return input_specs(m); }
  TensorDict forward(int64_t, TensorDict) override { return {{"x", at::zeros({1})}}; }
  TensorDict backward(int64_t, TensorDict, bool) override { return {{"x", at::zeros({1})}}; }
  void backward_weight(int64_t) override {}
};

TEST(Executor, NamesTheStageThatFailed) {
  class Failing : public Idle {
   public:
    TensorDict backward(int64_t m, TensorDict gradients, bool later) override {
      require(m != 2, "weight: not finite");
      return Idle::backward(m, std::move(gradients), later);
    }
  };
  const Program program =
      add_communication(build_program({.schedule = Schedule::one_f_one_b, .num_ranks = 2, .num_microbatches = 4}));
  EXPECT_THAT(
      any_error::error_of([&] {
        on_ranks(
            program, [](int64_t) { return std::make_unique<Failing>(); }, [](int64_t, StageRunner&) {});
      }),
      HasSubstr("stage 1, micro-batch 2: weight: not finite"));
}

TEST(Executor, RefusesStagesOfAnotherRank) {
  const Program program =
      add_communication(build_program({.schedule = Schedule::one_f_one_b, .num_ranks = 2, .num_microbatches = 2}));
  Idle idle;
  EXPECT_THAT(
      any_error::error_of([&] {
        run_program(program, 0, nullptr, {{1, &idle}});
      }),
      HasSubstr("rank 0: the given stages are not the stages of this rank in the program"));
}

}  // namespace
}  // namespace lehr::pipeline
