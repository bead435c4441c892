// Events of a training run that user code can subscribe to.
#pragma once

#include <functional>
#include <map>
#include <vector>

#include "lehr/nn/model.h"

namespace lehr::train {

/// Events in the order in which they occur within a step.
enum class Event {
  ready,                 ///< Everything is built and loaded; before the first step.
  step_begin,            ///< Before the batches of a step.
  gradients_ready,       ///< Gradients are summed over micro-batches and ranks. Their norm and clipping follow, so a
                         ///< handler may change them in place.
  step_end,              ///< After the update; the metrics of the step are available.
  validation_end,        ///< A validation loss is available.
  checkpoint_requested,  ///< A checkpoint was handed to the writer.
  finished,              ///< After the last step.
};

/// The argument of a handler. References are valid only during the call.
struct EventContext {
  int64_t step = 0;  ///< Completed steps, including the current one.
  nn::Model* model = nullptr;
  const std::map<std::string, double>* metrics = nullptr;  ///< loss, grad_norm, lr, ... as in metrics.jsonl.
};

/// Calls handlers in the order of subscription. An exception of a handler ends the run after the usual clean-up.
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
