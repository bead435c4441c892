#include "lehr/pipeline/executor.h"

#include <chrono>
#include <deque>
#include <utility>

#include "lehr/base/error.h"
#include "lehr/mesh/exception_text.h"
#include "lehr/mesh/watchdog.h"

namespace lehr::pipeline {

namespace {
using mesh::Pending;

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Tensors for a later action: computed already, or being received.
struct Arrival {
  TensorDict tensors;
  std::vector<Pending> receives;
};

// Tensors being sent to another rank; they must live until the sends have ended.
struct Departure {
  std::vector<at::Tensor> tensors;
  std::vector<Pending> sends;

  void wait() {
    for (Pending& send : sends) {
      send.wait();
    }
  }
};

// The largest number of outstanding sends to one peer under bound_sends.
constexpr size_t kSendsUnderWay = 2;

class Run {
 public:
  Run(const Program& program,
      const mesh::Group* group,
      const std::map<int64_t, StageRunner*>& stages,
      at::Device device,
      bool bound_sends)
      : program_(program), group_(group), stages_(stages), device_(device), bounded_(bound_sends) {}

  void act(const Action& action) {
    const auto [kind, stage, microbatch] = action;
    switch (kind) {
      case ActionKind::forward:
        forward(stage, microbatch);
        break;
      case ActionKind::backward_full:
      case ActionKind::backward_input:
        backward(stage, microbatch, kind == ActionKind::backward_input);
        break;
      case ActionKind::backward_weight:
        at(stage).backward_weight(microbatch);
        break;
      case ActionKind::send_forward:
        send(take(outputs_, action).tensors, program_.rank_of_stage[static_cast<size_t>(stage) + 1]);
        break;
      case ActionKind::send_backward:
        send(take(output_gradients_, action).tensors, program_.rank_of_stage[static_cast<size_t>(stage) - 1]);
        break;
      case ActionKind::receive_forward:
        receive(at(stage).input_specs(microbatch), stage - 1, inputs_[{stage, microbatch}]);
        break;
      case ActionKind::receive_backward:
        receive(at(stage).gradient_specs(microbatch), stage + 1, gradients_[{stage, microbatch}]);
        break;
    }
  }

  void finish() {
    for (auto& [rank, departures] : departures_) {
      for (Departure& departure : departures) {
        departure.wait();
      }
    }
    departures_.clear();
  }

 private:
  using Key = std::pair<int64_t, int64_t>;  // stage, micro-batch
  using Arrivals = std::map<Key, Arrival>;

  bool here(int64_t stage) const { return stages_.contains(stage); }
  StageRunner& at(int64_t stage) const { return *stages_.at(stage); }
  bool last(int64_t stage) const { return stage + 1 == program_.num_stages(); }

  static Arrival take(Arrivals& from, const Action& action) {
    auto node = from.extract({action.stage, action.microbatch});
    invariant(!node.empty(), "pipeline: {}: its inputs were not computed or received before", to_string(action));
    for (Pending& receive : node.mapped().receives) {
      receive.wait();
    }
    return std::move(node.mapped());
  }

  void forward(int64_t stage, int64_t microbatch) {
    const Action action{ActionKind::forward, stage, microbatch};
    TensorDict inputs = stage > 0 ? take(inputs_, action).tensors : TensorDict{};
    TensorDict outputs = at(stage).forward(microbatch, std::move(inputs));
    if (last(stage)) {
      return;
    }
    // If this rank has the next stage, the outputs become its inputs immediately; otherwise they wait for SEND_F.
    Arrivals& next = here(stage + 1) ? inputs_ : outputs_;
    next[{here(stage + 1) ? stage + 1 : stage, microbatch}].tensors = std::move(outputs);
  }

  void backward(int64_t stage, int64_t microbatch, bool weights_later) {
    const Action action{ActionKind::backward_full, stage, microbatch};
    TensorDict gradients = last(stage) ? TensorDict{} : take(gradients_, action).tensors;
    gradients = at(stage).backward(microbatch, std::move(gradients), weights_later);
    if (stage == 0) {
      return;
    }
    Arrivals& next = here(stage - 1) ? gradients_ : output_gradients_;
    next[{here(stage - 1) ? stage - 1 : stage, microbatch}].tensors = std::move(gradients);
  }

  void send(TensorDict tensors, int64_t to) {
    auto& departures = departures_[to];
    // Backends report the end of a send only to a caller that waits for it.
    while (bounded_ && departures.size() >= kSendsUnderWay) {
      departures.front().wait();
      departures.pop_front();
    }
    Departure departure;
    for (auto& [name, tensor] : tensors) {
      departure.tensors.push_back(tensor.contiguous());
      departure.sends.push_back(group_->start_send(departure.tensors.back(), to));
    }
    departures.push_back(std::move(departure));
  }

  void receive(const TensorDict& specs, int64_t from_stage, Arrival& arrival) {
    const int64_t from = program_.rank_of_stage[static_cast<size_t>(from_stage)];
    for (const auto& [name, spec] : specs) {
      at::Tensor tensor = at::empty(spec.sizes(), spec.options().device(device_));
      arrival.receives.push_back(group_->start_receive(tensor, from));
      arrival.tensors.emplace(name, std::move(tensor));
    }
  }

  const Program& program_;
  const mesh::Group* group_;
  const std::map<int64_t, StageRunner*>& stages_;
  at::Device device_;
  Arrivals inputs_;                                      // by stage that will use them in its forward
  Arrivals outputs_;                                     // by stage that computed them, until they are sent
  Arrivals gradients_;                                   // of outputs, by stage that will use them in its backward
  Arrivals output_gradients_;                            // of inputs, by stage that computed them, until they are sent
  std::map<int64_t, std::deque<Departure>> departures_;  // by receiving rank
  bool bounded_;
};
}  // namespace

void run_program(
    const Program& program,
    int64_t rank,
    const mesh::Group* group,
    const std::map<int64_t, StageRunner*>& stages,
    const ExecutorOptions& options) {
  std::vector<int64_t> given;
  for (const auto& [stage, runner] : stages) {
    given.push_back(stage);
  }
  invariant(
      rank < program.num_ranks() && given == program.stages_of(rank),
      "pipeline: rank {}: the given stages are not the stages of this rank in the program",
      rank);
  invariant(
      program.num_ranks() == 1 || (group != nullptr && group->size() == program.num_ranks()),
      "pipeline: the program has {} ranks, the group {}",
      program.num_ranks(),
      group != nullptr ? group->size() : 1);
  Run run(program, group, stages, options.device, options.bound_sends);
  for (const Actions& actions : program.ranks[static_cast<size_t>(rank)]) {
    for (const Action& action : actions) {
      const double start = options.on_action ? now() : 0;
      try {
        run.act(action);
      } catch (const mesh::PeerFailure&) {
        throw;
      } catch (const Error& error) {
        throw Error(
            error.kind(), fmt::format("stage {}, micro-batch {}: {}", action.stage, action.microbatch, error.what()));
      }
      if (options.on_action) {
        options.on_action(action, start, now());
      }
    }
  }
  run.finish();
}

}  // namespace lehr::pipeline
