// Moments of a training run that user code can act on.
#pragma once

#include <functional>
#include <map>
#include <vector>

#include "lehr/nn/model.h"

namespace lehr::train {

/// When handlers are called; the order within a step is the order here.
enum class Event {
  ready,                 ///< Everything is built and loaded; before the first step.
  step_begin,            ///< Before the batches of a step.
  gradients_ready,       ///< Gradients are summed and normalised, not clipped yet; before an update, if there is one.
  step_end,              ///< After the update; the metrics of the step are there.
  validation_end,        ///< A validation loss is there.
  checkpoint_requested,  ///< A checkpoint was handed to the writer.
  finished,              ///< After the last step.
};

/// What a handler sees. References are valid during the call only.
struct EventContext {
  int64_t step = 0;  ///< Steps done, the present one included.
  nn::Model* model = nullptr;
  const std::map<std::string, double>* metrics = nullptr;  ///< loss, grad_norm, lr, ... as in metrics.jsonl.
};

/// Calls handlers in the order in which they subscribed. What a handler throws ends the run, after the usual clean-up.
class EventBus {
 public:
  using Handler = std::function<void(const EventContext&)>;
  void subscribe(Event event, Handler handler) { handlers_[event].push_back(std::move(handler)); }
  bool has_subscribers(Event event) const { return handlers_.contains(event); }
  void emit(Event event, const EventContext& context) const {
    if (const auto found = handlers_.find(event); found != handlers_.end()) {
      for (const auto& handler : found->second) {
        handler(context);
      }
    }
  }

 private:
  std::map<Event, std::vector<Handler>> handlers_;
};

}  // namespace lehr::train
