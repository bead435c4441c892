#include "lehr/plan/measure_pass.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace lehr::plan {

using pipeline::ActionKind;

namespace {
// Sums the collectives from index `first` on by axes and kind.
std::vector<Communication> added_up(const std::vector<mesh::FakeCollective>& seen, size_t first) {
  std::vector<Communication> sums;
  for (size_t i = first; i < seen.size(); ++i) {
    const auto& one = seen[i];
    auto found = std::find_if(sums.begin(), sums.end(), [&](const Communication& sum) {
      return sum.axes == one.group && sum.collective == one.name;
    });
    if (found == sums.end()) {
      sums.push_back({.axes = one.group, .collective = one.name, .group_size = one.size});
      found = sums.end() - 1;
    }
    found->bytes += one.bytes;
    ++found->calls;
  }
  return sums;
}
}  // namespace

ActionMeasurement Measuring::measure(int64_t rest, const std::function<void()>& action) {
  first_ = seen_.all.size();
  earlier_.clear();
  memory_.reset_peak();
  now_ = {};
  OperationMeter operations;
  operations_ = &operations;
  seen_.observe = [&](size_t number, bool waited) { observe(number, waited); };
  action();
  add_event({});
  seen_.observe = {};
  operations_ = nullptr;
  now_.peak = memory_.peak() - rest;
  now_.kept = live() - rest;
  now_.communication = added_up(seen_.all, first_);
  add_calls();
  return std::move(now_);
}

void Measuring::mark() {
  add_event({});
  now_.border = now_.events.size();
}

void Measuring::observe(size_t number, bool waited) {
  // Calls of earlier actions follow the action's own, whose number is not known yet: they count down from kNone.
  auto call = static_cast<int64_t>(number) - static_cast<int64_t>(first_);
  if (call < 0) {
    earlier_.push_back(number);
    call = ActionEvent::kNone - static_cast<int64_t>(earlier_.size());
  }
  add_event({.started = waited ? ActionEvent::kNone : call, .waited = waited ? call : ActionEvent::kNone});
}

void Measuring::add_event(ActionEvent event) {
  event.work = operations_->counts();
  operations_->reset();
  now_.matmul_flops += event.work.matmul_flops;
  now_.attention_flops += event.work.attention_flops;
  now_.recomputed_flops += event.work.recomputed_flops;
  now_.pointwise_bytes += event.work.pointwise_bytes;
  now_.events.push_back(event);
}

void Measuring::add_calls() {
  std::vector<size_t> numbers(seen_.all.size() - first_);
  std::iota(numbers.begin(), numbers.end(), first_);
  for (ActionEvent& event : now_.events) {
    if (event.waited < ActionEvent::kNone) {
      event.waited = static_cast<int64_t>(numbers.size()) + ActionEvent::kNone - event.waited - 1;
    }
  }
  numbers.insert(numbers.end(), earlier_.begin(), earlier_.end());
  for (const size_t number : numbers) {
    const mesh::FakeCollective& one = seen_.all[number];
    now_.calls.push_back(
        {.axes = one.group, .collective = one.name, .group_size = one.size, .bytes = one.bytes, .calls = 1});
  }
}

void Passes::begin_step(int64_t microbatches) {
  order_.begin_step(microbatches);
  microbatches_ = microbatches;
  forwards_ = backwards_ = 0;
  begins_ = true;
}

ActionMeasurement Passes::run(ActionKind kind, int64_t rest) {
  const PassPlace place = order_.next(kind);
  ActionMeasurement measured = measuring_.measure(rest, [&] {
    if (std::exchange(begins_, false)) {
      run_.begin_step(microbatches_);
      measuring_.mark();
    }
    act(kind);
    if (place.last) {
      measuring_.mark();
      run_.finish_step();
    }
  });
  found_.try_emplace(place, measured);
  return measured;
}

void Passes::act(ActionKind kind) {
  switch (kind) {
    case ActionKind::forward:
      return run_.forward(forwards_++);
    case ActionKind::backward_full:
      return run_.backward(backwards_++);
    case ActionKind::backward_input:
      deferred_.push_back(backwards_);
      return run_.backward_input(backwards_++);
    default:
      run_.backward_weight(deferred_.front());
      deferred_.pop_front();
  }
}

}  // namespace lehr::plan
