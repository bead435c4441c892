#include "lehr/shard/fsdp_schedule.h"

#include <algorithm>

#include "lehr/base/error.h"
#include "lehr/nn/activation_checkpoint.h"
#include "lehr/shard/fsdp_graph.h"

namespace lehr::shard {

namespace {
std::vector<FsdpUnit*> in_order(const std::vector<FsdpSchedule::Unit>& units) {
  std::vector<FsdpUnit*> order;
  for (const auto& unit : units) {
    order.push_back(unit.shards.get());
  }
  return order;
}
}  // namespace

FsdpSchedule::FsdpSchedule(
    std::vector<Unit> units,
    std::unique_ptr<GradientSync> sync,
    std::shared_ptr<ByteCount> count,
    Reductions reductions)
    : count_(std::move(count)),
      units_(std::move(units)),
      sync_(std::move(sync)),
      forward_(in_order(units_)),
      reductions_(reductions) {}

FsdpSchedule::~FsdpSchedule() {
  for (Unit& unit : units_) {
    end_pass(unit);
  }
}

// A pipeline alternates between forwards and backwards of different micro-batches. What was used since the last change
// of direction is what to expect after the next one: a longer order, such as that of a step, would prefetch the first
// unit of the next forward at the end of this one, while a backward comes first.
PrefetchOrder& FsdpSchedule::order_of(Direction direction) {
  PrefetchOrder& order = direction == Direction::forward ? forward_ : backward_;
  if (direction != direction_) {
    order.restart(/*learn=*/true);
    direction_ = direction;
  }
  return order;
}

// Unshards `unit` and prefetches the one that is expected next. Invariant: apart from units that the reshard policy
// keeps, at most two are unsharded, the one in use and the prefetched one.
//
// Order of collectives: the all-gather of `unit` (issued here unless it was prefetched), then that of the next unit.
// Both depend on the sequence of calls only, so all ranks issue them in the same order.
void FsdpSchedule::use(Unit& unit, Direction direction) {
  FsdpUnit* const shards = unit.shards.get();
  if (ahead_ != nullptr && ahead_ != shards && !shards->gathered()) {
    ahead_->reshard();  // mispredicted: a third unit must not be unsharded
    ahead_ = nullptr;
  }
  shards->unshard();  // waits for the prefetch, if there was one
  ahead_ = ahead_ == shards ? nullptr : ahead_;
  FsdpUnit* const next = order_of(direction).enter(shards);
  ends_forward_ = direction == Direction::forward && next == nullptr;
  if (next != nullptr && next != shards && ahead_ == nullptr && !next->gathered() && !next->gathering()) {
    next->start_unshard();
    ahead_ = next->gathering() ? next : nullptr;  // a unit without memory has nothing to prefetch
  }
}

// Sets the slots to the whole parameters for the call that follows, as leaves of a graph if autograd records. Returns
// the input of the call.
at::Tensor FsdpSchedule::join_graph(Unit& unit, const std::shared_ptr<FsdpPass>& pass, const at::Tensor& input) {
  FsdpUnit& shards = *unit.shards;
  if (shards.trainable().empty()) {
    // Frozen weights are still read by dgrad, so backward has to unshard and reshard the unit.
    shards.set_slots({});
    const bool differentiate = at::GradMode::is_enabled() && input.requires_grad() && shards.has_memory();
    if (!differentiate) {
      return input;
    }
    unit.graphs += pass->frozen_calls == 0 ? 1 : 0;
    ++pass->frozen_calls;
    return begin_frozen(input, pass);
  }
  if (!at::GradMode::is_enabled()) {
    if (!pass->in_graph) {
      shards.set_slots({});
    }
    return input;
  }
  require(
      !synchronized_,
      "fully sharded unit {}: a forward pass with gradients outside of a step; call begin_step() first",
      shards.name());
  // One Begin node per pass: all modules of the unit share it, so the gradients of the unit are complete at once.
  if (!pass->in_graph) {
    const auto tensors = begin_graph(shards, pass, input.device());
    shards.set_slots(tensors);
    pass->begin = tensors.front();
    pass->in_graph = true;
    ++unit.graphs;
  }
  ++pass->calls_in_graph;
  return input;
}

at::Tensor FsdpSchedule::call(
    size_t index, size_t module, const at::Tensor& input, const nn::CallHook::Forward& forward) {
  Unit& unit = units_[index];
  const bool recomputing = nn::is_recomputing();
  require(
      recomputing || !unit.sent,
      "fully sharded unit {}: a micro-batch after the step's last; if several run before finish_backward(), call "
      "set_last_microbatch(false) before the first of them and set_last_microbatch(true) after the last forward",
      unit.shards->name());
  use(unit, recomputing ? Direction::backward : Direction::forward);

  // A module that activation checkpointing recomputes in backward has a graph of its own, which is differentiated
  // immediately: it never shares a pass with the unit's other modules.
  auto pass = recomputing ? nullptr : unit.pass;
  if (!pass || pass->called[module]) {
    pass = std::make_shared<FsdpPass>(FsdpPass{
        .schedule = weak_from_this(),
        .unit = index,
        .generation = generation_,
        .called = std::vector<bool>(unit.modules, false)});
  }
  pass->called[module] = true;
  if (!recomputing) {
    if (unit.pass != pass) {
      end_pass(unit);  // the previous pass did not call all modules
    }
    unit.pass = pass;
    ++unit.calls;
  }
  const at::Tensor joined = join_graph(unit, pass, input);
  at::Tensor output = forward(joined);
  // The End node is needed wherever backward will pass, even if the output depends on no parameter of this rank (an
  // expert without tokens): otherwise this rank would skip the unit's all-gather and reduce-scatter.
  const bool comes_back = at::GradMode::is_enabled() && (output.requires_grad() || pass->begin.defined());
  if (comes_back) {
    output = end_call(output, pass);
  }
  if (recomputing) {
    pass->begin.reset();
    unit.shards->set_slots_to_meta();
    if (!comes_back) {
      reshard(unit);  // else leave_backward() reshards it in a moment
    }
  } else if (std::all_of(pass->called.begin(), pass->called.end(), [](bool one) { return one; })) {
    close(unit);
    if (unit.reshard && !(unit.stays_at_end && ends_forward_)) {
      reshard(unit);
    }
  }
  return output;
}

void FsdpSchedule::end_pass(Unit& unit) {
  if (unit.pass) {
    unit.pass->begin.reset();  // breaks the cycle: `begin` owns the graph, whose nodes own the pass
    unit.pass.reset();
  }
}

// Ends the forward pass through the unit: from here on its parameters cannot be read, except under unshard_all().
void FsdpSchedule::close(Unit& unit) {
  end_pass(unit);
  held_ ? unit.shards->set_slots({}) : unit.shards->set_slots_to_meta();
}

void FsdpSchedule::reshard(Unit& unit) {
  if (!held_) {
    unit.shards->reshard();
  }
}

// Pre-backward: runs at the output of each call, before dgrad reads the weights.
void FsdpSchedule::enter_backward(const FsdpPass& pass) {
  require(pass.generation == generation_, "fully sharded model: backward of a forward pass from before reset()");
  if (units_[pass.unit].backward_reads_weights) {
    use(units_[pass.unit], Direction::backward);
  }
}

// Post-backward: runs once per pass, when the gradients of all its parameters are known (twice if wgrad is deferred);
// of a unit without trainable parameters once per call. Order of collectives: wait for the reduce-scatter of the unit
// before (but see make_room_for()), then start this unit's. So one reduce-scatter runs at a time, and overlaps with
// backward of the next unit.
std::vector<at::Tensor> FsdpSchedule::leave_backward(
    const std::shared_ptr<FsdpPass>& pass, std::vector<at::Tensor> gradients) {
  require(pass->generation == generation_, "fully sharded model: backward of a forward pass from before reset()");
  if (pass->frozen_calls > 1) {  // the pass still needs the weights, for dgrad of a module that was called earlier
    --pass->frozen_calls;
    return {};
  }
  Unit& unit = units_[pass->unit];
  const auto trainable = unit.shards->trainable();
  for (size_t i = 0; i < trainable.size(); ++i) {
    if (gradients[i].defined()) {
      had_gradient_.insert(trainable[i].get());
    }
  }
  auto own = unit.shards->take_own_gradients(gradients);
  if (pass->waiting) {  // wgrad: finish_wgrad() sends the sum when all matmuls of the pass are done
    pass->add(gradients);
    return own;
  }
  make_room_for(unit);
  unit.graphs -= pass->in_graph ? 1 : pass->frozen_calls;
  pass->frozen_calls = 0;
  if (unit.reshard || (unit.graphs == 0 && !unit.keep)) {
    reshard(unit);  // first, so that the reduce-scatter's buffers can take the memory
  }
  if (pass->in_graph) {
    const auto weight_gradients = pass->weight_gradients.lock();
    if (weight_gradients && weight_gradients->defers()) {
      pass->waiting = true;
      ++waiting_;
      pass->add(gradients);
      weight_gradients->then([self = weak_from_this(), pass] { finish_wgrad(self.lock(), *pass); });
    } else {
      reduce(*pass, gradients);
    }
  }
  return own;
}

// Runs after the last deferred wgrad of a pass; `self` is null if the model was destroyed.
void FsdpSchedule::finish_wgrad(const std::shared_ptr<FsdpSchedule>& self, FsdpPass& pass) {
  require(
      self && pass.generation == self->generation_,
      "fully sharded model: weight gradients of a forward pass from before reset(), or after the model's end");
  self->make_room_for(self->units_[pass.unit]);
  pass.waiting = false;
  --self->waiting_;
  self->reduce(pass, std::exchange(pass.gradients, {}));
}

void FsdpSchedule::reduce(const FsdpPass& pass, const std::vector<at::Tensor>& gradients) {
  Unit& unit = units_[pass.unit];
  const bool send = reductions_.each_microbatch || last_;
  unit.shards->start_reduce(gradients, send);
  unit.done += pass.calls_in_graph;  // all ranks count alike, so all pass units on to GradientSync in the same order
  unit.sent = last_ && unit.done == unit.calls;
  if (send) {
    reducing_.push_back(&unit);
  }
}

// Waits for reduce-scatters, so that the one of `unit` can reuse their buffers. With wait_at_end, the last micro-batch
// needs no such room, because each buffer replaces the unit's own kept gradient; the wait is in finish_backward(), so
// that a stage's backward ends, and the gradients of its inputs are sent, without waiting for reductions.
void FsdpSchedule::make_room_for(const Unit& unit) {
  const bool has_room = reductions_.wait_at_end && last_;
  if (!has_room || std::find(reducing_.begin(), reducing_.end(), &unit) != reducing_.end()) {
    finish_reduce_scatters();
  }
}

// Waits for the reduce-scatters that run. Units that have sent their last gradients of the step are passed on to the
// all-reduce over replicas, whose buckets start as soon as they are full.
void FsdpSchedule::finish_reduce_scatters() {
  for (; !reducing_.empty(); reducing_.pop_front()) {
    const Unit& unit = *reducing_.front();
    unit.shards->finish_reduce();
    if (unit.sent) {
      for (const auto& parameter : unit.shards->trainable()) {
        sync_->ready(*parameter);
      }
    }
  }
}

// Reduce-scatters gradients that earlier micro-batches kept, of units that the last one did not use. Whether a unit
// keeps gradients is the same on all ranks, even if only some of them have values.
void FsdpSchedule::reduce_leftovers() {
  for (Unit& unit : units_) {
    if (unit.shards->keeps_gradients()) {
      unit.shards->start_reduce(std::vector<at::Tensor>(unit.shards->trainable().size()), /*send=*/true);
      unit.shards->finish_reduce();
    }
  }
}

// Reshards all units. With `learn`, the pass that ends becomes the prefetch order of the next one.
void FsdpSchedule::reshard_all(bool learn) {
  ahead_ = nullptr;
  for (Unit& unit : units_) {
    close(unit);
    unit.shards->reshard();
    unit.graphs = unit.calls = unit.done = 0;
    unit.sent = false;
  }
  forward_.restart(learn);
  backward_.restart(learn);
}

void FsdpSchedule::require_none_waiting(const char* call) const {
  require(
      waiting_ == 0,
      "fully sharded model: {} while units wait for weight gradients; call backward_weight() for each micro-batch that "
      "had backward_input(), or reset() after a failure",
      call);
}

void FsdpSchedule::begin_step() {
  require_none_waiting("begin_step()");
  held_ = false;
  finish_reduce_scatters();
  reshard_all(/*learn=*/false);
  for (Unit& unit : units_) {
    unit.shards->drop_gradients();
  }
  had_gradient_.clear();
  last_ = true;
  synchronized_ = false;
  prefetch();
}

// A pipeline's rank waits for its first micro-batch meanwhile. Units that stay unsharded are all gathered.
void FsdpSchedule::prefetch() {
  for (FsdpUnit* const shards : forward_.expected()) {
    shards->start_unshard();
    if (!units_.front().keep) {
      ahead_ = shards->gathering() ? shards : nullptr;
      return;
    }
  }
}

void FsdpSchedule::finish_backward() {
  require(!synchronized_, "fully sharded model: finish_backward() outside of a step; call begin_step() first");
  require_none_waiting("finish_backward()");
  finish_reduce_scatters();
  reshard_all(/*learn=*/true);
  if (!last_) {
    return;
  }
  reduce_leftovers();
  // The reduce-scatter defines gradients even on ranks that did not use a parameter, so had_gradient_ decides for the
  // parameters of units.
  std::unordered_set<const nn::Parameter*> ours;
  for (const Unit& unit : units_) {
    for (const auto& parameter : unit.shards->parameters()) {
      ours.insert(parameter.get());
    }
  }
  sync_->finish([&](const nn::Parameter& parameter) {
    return ours.contains(&parameter) ? had_gradient_.contains(&parameter) : parameter.value().grad().defined();
  });
  synchronized_ = true;
}

void FsdpSchedule::unshard_all() {
  reshard_all(/*learn=*/false);
  held_ = true;
  for (Unit& unit : units_) {
    unit.shards->unshard();
    unit.shards->set_slots({});
  }
}

void FsdpSchedule::reset() noexcept {
  ++generation_;  // backward of older graphs is refused
  waiting_ = 0;
  ahead_ = nullptr;
  reducing_.clear();
  held_ = false;
  synchronized_ = true;
  last_ = true;
  had_gradient_.clear();
  for (Unit& unit : units_) {
    end_pass(unit);
    unit.shards->reset();
    unit.graphs = unit.calls = unit.done = 0;
    unit.sent = false;
  }
  forward_.restart(/*learn=*/false);
  backward_.restart(/*learn=*/false);
  sync_->reset();
}

}  // namespace lehr::shard
