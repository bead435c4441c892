#include "lehr/shard/unit_schedule.h"

#include <algorithm>

#include "lehr/base/error.h"
#include "lehr/nn/activation_checkpoint.h"
#include "lehr/shard/unit_graph.h"

namespace lehr::shard {

namespace {
std::vector<ShardUnit*> in_order(const std::vector<UnitSchedule::Unit>& units) {
  std::vector<ShardUnit*> order;
  for (const auto& unit : units) {
    order.push_back(unit.shards.get());
  }
  return order;
}
}  // namespace

UnitSchedule::UnitSchedule(
    std::vector<Unit> units, std::unique_ptr<GradientSync> sync, std::shared_ptr<ByteCount> count)
    : count_(std::move(count)), units_(std::move(units)), sync_(std::move(sync)), forward_(in_order(units_)) {}

UnitSchedule::~UnitSchedule() {
  for (Unit& unit : units_) {
    end_pass(unit);
  }
}

// No more than two units are there that the policy does not keep: the one in use and the one ahead.
void UnitSchedule::use(Unit& unit, Direction direction) {
  ShardUnit* const shards = unit.shards.get();
  if (ahead_ != nullptr && ahead_ != shards && !shards->gathered()) {
    ahead_->release();  // it was expected, and another one came
    ahead_ = nullptr;
  }
  shards->gather();
  ahead_ = ahead_ == shards ? nullptr : ahead_;
  ShardUnit* const next = (direction == Direction::forward ? forward_ : backward_).enter(shards);
  if (next != nullptr && next != shards && ahead_ == nullptr && !next->gathered()) {
    next->start_gather();
    ahead_ = next->gathering() ? next : nullptr;
  }
}

at::Tensor UnitSchedule::join_graph(Unit& unit, const std::shared_ptr<UnitPass>& pass, const at::Tensor& input) {
  ShardUnit& shards = *unit.shards;
  if (shards.trainable().empty()) {
    shards.show({});
    const bool differentiate = at::GradMode::is_enabled() && input.requires_grad() && shards.has_memory();
    return differentiate ? begin_frozen(input, pass) : input;
  }
  if (!at::GradMode::is_enabled()) {
    if (!pass->in_graph) {
      shards.show({});
    }
    return input;
  }
  require(
      !synchronized_,
      "fully sharded unit {}: a forward pass with gradients outside of a step; call begin_step() first",
      shards.name());
  require(
      !unit.sent || nn::is_recomputing(),
      "fully sharded unit {}: another microbatch after its gradients were summed over the ranks as the step's last; "
      "where several microbatches come before finish_backward(), call set_last_microbatch(false) before the first of "
      "them "
      "and set_last_microbatch(true) when no forward pass is to come",
      shards.name());
  if (!pass->in_graph) {
    const auto tensors = begin_graph(shards, pass, input.device());
    shards.show(tensors);
    pass->begin = tensors.front();
    pass->in_graph = true;
    ++unit.graphs;
  }
  ++pass->calls_in_graph;
  return input;
}

at::Tensor UnitSchedule::call(
    size_t index, size_t module, const at::Tensor& input, const nn::CallHook::Forward& forward) {
  Unit& unit = units_[index];
  const bool recomputing = nn::is_recomputing();
  use(unit, recomputing ? Direction::backward : Direction::forward);

  // A block that backward runs again is differentiated at once, apart from what surrounds it.
  auto pass = recomputing ? nullptr : unit.pass;
  if (!pass || pass->called[module]) {
    pass = std::make_shared<UnitPass>(UnitPass{
        .schedule = weak_from_this(),
        .unit = index,
        .generation = generation_,
        .called = std::vector<bool>(unit.modules, false)});
  }
  pass->called[module] = true;
  if (!recomputing) {
    if (unit.pass != pass) {
      end_pass(unit);  // the one before did not come to all modules
    }
    unit.pass = pass;
    ++unit.calls;
  }
  const at::Tensor joined = join_graph(unit, pass, input);
  at::Tensor output = forward(joined);
  const bool comes_back = at::GradMode::is_enabled() && (output.requires_grad() || pass->begin.defined());
  if (comes_back) {
    output = end_call(output, pass);
  }
  if (recomputing) {
    pass->begin.reset();
    unit.shards->show_nothing();
    if (!comes_back) {
      release(unit);
    }
  } else if (std::all_of(pass->called.begin(), pass->called.end(), [](bool one) { return one; })) {
    close(unit);
    if (unit.reshard) {
      release(unit);
    }
  }
  return output;
}

void UnitSchedule::end_pass(Unit& unit) {
  if (unit.pass) {
    unit.pass->begin.reset();  // which holds the graph, which holds the pass
    unit.pass.reset();
  }
}

void UnitSchedule::close(Unit& unit) {
  end_pass(unit);
  held_ ? unit.shards->show({}) : unit.shards->show_nothing();
}

void UnitSchedule::release(Unit& unit) {
  if (!held_) {
    unit.shards->release();
  }
}

void UnitSchedule::enter_backward(const UnitPass& pass) {
  require(pass.generation == generation_, "fully sharded model: backward of a forward pass from before reset()");
  if (units_[pass.unit].backward_reads_weights) {
    use(units_[pass.unit], Direction::backward);
  }
}

std::vector<at::Tensor> UnitSchedule::leave_backward(
    const std::shared_ptr<UnitPass>& pass, std::vector<at::Tensor> gradients) {
  require(pass->generation == generation_, "fully sharded model: backward of a forward pass from before reset()");
  Unit& unit = units_[pass->unit];
  const auto trainable = unit.shards->trainable();
  for (size_t i = 0; i < trainable.size(); ++i) {
    if (gradients[i].defined()) {
      had_gradient_.insert(trainable[i].get());
    }
  }
  auto own = unit.shards->take_own_gradients(gradients);
  if (pass->waiting) {
    pass->add(gradients);
    return own;
  }
  settle();
  if (pass->in_graph) {
    --unit.graphs;
    const auto weight_gradients = pass->weight_gradients.lock();
    if (weight_gradients && weight_gradients->defers()) {
      pass->waiting = true;
      ++waiting_;
      pass->add(gradients);
      weight_gradients->then([pass] { finish_halves(*pass); });
    } else {
      reduce(*pass, gradients);
    }
  }
  if (unit.reshard || (unit.graphs == 0 && !unit.keep)) {
    release(unit);
  }
  return own;
}

void UnitSchedule::finish_halves(UnitPass& pass) {
  const auto self = pass.schedule.lock();
  require(
      self && pass.generation == self->generation_,
      "fully sharded model: weight gradients of a forward pass from before reset(), or after the model's end");
  self->settle();
  pass.waiting = false;
  --self->waiting_;
  self->reduce(pass, std::exchange(pass.gradients, {}));
}

void UnitSchedule::reduce(const UnitPass& pass, const std::vector<at::Tensor>& gradients) {
  Unit& unit = units_[pass.unit];
  unit.shards->start_reduce(gradients);
  unit.done += pass.calls_in_graph;
  reducing_ = &unit;
}

// Waits for the gradients under way, and hands them on if they are the step's.
void UnitSchedule::settle() {
  if (reducing_ == nullptr) {
    return;
  }
  Unit& unit = *std::exchange(reducing_, nullptr);
  unit.shards->finish_reduce();
  if (last_ && unit.done == unit.calls) {
    unit.sent = true;
    for (const auto& parameter : unit.shards->trainable()) {
      sync_->ready(*parameter);
    }
  }
}

void UnitSchedule::release_all(bool learn) {
  ahead_ = nullptr;
  for (Unit& unit : units_) {
    close(unit);
    unit.shards->release();
    unit.graphs = unit.calls = unit.done = 0;
    unit.sent = false;
  }
  forward_.restart(learn);
  backward_.restart(learn);
}

void UnitSchedule::require_none_waiting(const char* call) const {
  require(
      waiting_ == 0,
      "fully sharded model: {} while units wait for weight gradients; call backward_weight() for each microbatch that "
      "had backward_input(), or reset() after a failure",
      call);
}

void UnitSchedule::begin_step() {
  require_none_waiting("begin_step()");
  held_ = false;
  settle();
  for (Unit& unit : units_) {
    unit.shards->prepare();  // what flows between stages has the type that slots show
  }
  release_all(/*learn=*/false);
  had_gradient_.clear();
  last_ = true;
  synchronized_ = false;
}

void UnitSchedule::finish_backward() {
  require(!synchronized_, "fully sharded model: finish_backward() outside of a step; call begin_step() first");
  require_none_waiting("finish_backward()");
  settle();
  release_all(/*learn=*/true);
  if (!last_) {
    return;
  }
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

void UnitSchedule::hold() {
  release_all(/*learn=*/false);
  held_ = true;
  for (Unit& unit : units_) {
    unit.shards->gather();
    unit.shards->show({});
  }
}

void UnitSchedule::reset() noexcept {
  ++generation_;
  waiting_ = 0;
  ahead_ = nullptr;
  reducing_ = nullptr;
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
