#include "lehr/state/state_map.h"

#include <algorithm>
#include <numeric>

#include "lehr/base/error.h"

namespace lehr::state {

namespace {
// Connected sets of values: union-find with path halving.
class Components {
 public:
  explicit Components(size_t count) : parents_(count) { std::iota(parents_.begin(), parents_.end(), size_t{0}); }
  size_t find(size_t value) {
    while (parents_[value] != value) {
      parents_[value] = parents_[parents_[value]];
      value = parents_[value];
    }
    return value;
  }
  // The lower index becomes the root, so that trees stay flat if steps are in order.
  void join(size_t a, size_t b) {
    const size_t first = find(a);
    const size_t second = find(b);
    parents_[std::max(first, second)] = std::min(first, second);
  }

 private:
  std::vector<size_t> parents_;
};

std::vector<std::string> names_of(const std::vector<MapPort>& ports) {
  std::vector<std::string> names;
  names.reserve(ports.size());
  for (const MapPort& port : ports) {
    names.push_back(port.name);
  }
  return names;
}

void check_distinct(const std::vector<MapPort>& ports, const char* done) {
  std::unordered_set<std::string_view> names;
  names.reserve(ports.size());
  for (const MapPort& port : ports) {
    require(names.insert(port.name).second, "{}: would be {} twice by a state map", port.name, done);
  }
}
}  // namespace

StateMap::StateMap() = default;
StateMap::StateMap(const StateMap& other) = default;
StateMap::StateMap(StateMap&& other) noexcept = default;
StateMap& StateMap::operator=(const StateMap& other) = default;
StateMap& StateMap::operator=(StateMap&& other) noexcept = default;
StateMap::~StateMap() = default;

StateMap::StateMap(
    std::vector<MapPort> inputs, std::vector<MapStep> steps, std::vector<MapPort> outputs, size_t num_values)
    : inputs_(std::move(inputs)), steps_(std::move(steps)), outputs_(std::move(outputs)), num_values_(num_values) {
  check_distinct(inputs_, "read");
  check_distinct(outputs_, "produced");
  work_ = static_cast<int64_t>(inputs_.size() + outputs_.size());
  // Every value must be produced once and then used once, in this order; therefore the map has an inverse.
  enum class Life : uint8_t { unborn, there, used };
  std::vector<Life> lives(num_values_, Life::unborn);
  auto make = [&](size_t value, const auto& subject) {
    if (value >= num_values_ || lives[value] != Life::unborn) {
      fail("{}: a state map would produce value {} twice, or has too few values", subject(), value);
    }
    lives[value] = Life::there;
  };
  auto use = [&](size_t value, const auto& subject) {
    if (value >= num_values_ || lives[value] != Life::there) {
      fail("{}: a state map would use value {} twice, or before it is produced", subject(), value);
    }
    lives[value] = Life::used;
  };
  for (const MapPort& port : inputs_) {
    make(port.value, [&] { return port.name; });
  }
  for (const MapStep& step : steps_) {
    const auto subject = [&] { return describe(step.op); };
    if (step.inputs.empty() || step.outputs.empty()) {
      fail("{}: expected tensors to read and to produce, found none", subject());
    }
    work_ += static_cast<int64_t>(step.inputs.size() + step.outputs.size());
    for (const size_t value : step.inputs) {
      use(value, subject);
    }
    for (const size_t value : step.outputs) {
      make(value, subject);
    }
  }
  for (const MapPort& port : outputs_) {
    use(port.value, [&] { return port.name; });
  }
}

std::vector<std::string> StateMap::input_names() const {
  return names_of(inputs_);
}

std::vector<std::string> StateMap::output_names() const {
  return names_of(outputs_);
}

std::vector<StateGroup> StateMap::groups() const {
  Components components(num_values_);
  for (const MapStep& step : steps_) {
    const size_t first = step.inputs.front();
    for (const auto* list : {&step.inputs, &step.outputs}) {
      for (const size_t value : *list) {
        components.join(first, value);
      }
    }
  }
  constexpr size_t kNone = SIZE_MAX;
  std::vector<size_t> group_of(num_values_, kNone);  // indexed by the root value of a component
  std::vector<StateGroup> groups;
  auto group = [&](size_t value) -> StateGroup& {
    size_t& index = group_of[components.find(value)];
    if (index == kNone) {
      index = groups.size();
      groups.emplace_back();
    }
    return groups[index];
  };
  for (const MapPort& port : outputs_) {
    group(port.value).outputs.push_back(port.name);
  }
  for (const MapPort& port : inputs_) {
    group(port.value).inputs.push_back(port.name);
  }
  for (size_t i = 0; i < steps_.size(); ++i) {
    group(steps_[i].inputs.front()).steps.push_back(i);
  }
  return groups;
}

StateMap StateMap::inverse() const {
  std::vector<bool> used(num_values_, false);
  for (const MapPort& port : outputs_) {
    used[port.value] = true;
  }
  std::vector<MapStep> steps;
  steps.reserve(steps_.size());
  for (auto step = steps_.rbegin(); step != steps_.rend(); ++step) {
    for (const size_t value : step->inputs) {
      used[value] = true;
    }
    steps.push_back({state::inverse(step->op), step->outputs, step->inputs});
  }
  for (const MapStep& step : steps_) {
    for (const size_t value : step.outputs) {
      require(
          used[value],
          "{}: has no inverse in a state map that was restricted to some outputs; invert the whole map first",
          describe(step.op));
    }
  }
  StateMap result(outputs_, std::move(steps), inputs_, num_values_);
  result.work_ += work_;
  return result;
}

StateMap StateMap::keep(const std::vector<bool>& kept_steps, const std::vector<bool>& values) const {
  constexpr size_t kNone = SIZE_MAX;
  std::vector<size_t> number(num_values_, kNone);
  size_t count = 0;
  auto renumber = [&](size_t value) {
    if (number[value] == kNone) {
      number[value] = count++;
    }
    return number[value];
  };
  std::vector<MapPort> inputs;
  for (const MapPort& port : inputs_) {
    if (values[port.value]) {
      inputs.push_back({port.name, renumber(port.value)});
    }
  }
  std::vector<MapStep> steps;
  for (size_t i = 0; i < steps_.size(); ++i) {
    if (!kept_steps[i]) {
      continue;
    }
    MapStep step{steps_[i].op, {}, {}};
    for (const size_t value : steps_[i].inputs) {
      if (values[value]) {
        step.inputs.push_back(renumber(value));
      }
    }
    for (const size_t value : steps_[i].outputs) {
      step.outputs.push_back(renumber(value));
    }
    steps.push_back(std::move(step));
  }
  std::vector<MapPort> outputs;
  for (const MapPort& port : outputs_) {
    if (values[port.value]) {
      outputs.push_back({port.name, renumber(port.value)});
    }
  }
  StateMap result(std::move(inputs), std::move(steps), std::move(outputs), count);
  result.work_ += work_;
  return result;
}

std::vector<bool> StateMap::steps_towards(std::vector<bool>& needed, const std::vector<bool>& there) const {
  std::vector<bool> kept(steps_.size(), false);
  for (size_t i = steps_.size(); i-- > 0;) {
    const MapStep& step = steps_[i];
    kept[i] = std::any_of(step.outputs.begin(), step.outputs.end(), [&](size_t value) { return needed[value]; });
    if (kept[i]) {
      for (const size_t value : step.inputs) {
        needed[value] = there[value];
      }
    }
  }
  return kept;
}

StateMap StateMap::to(const NameSet& outputs) const {
  std::vector<bool> needed(num_values_, false);
  size_t found = 0;
  for (const MapPort& port : outputs_) {
    if (outputs.contains(port.name)) {
      needed[port.value] = true;
      ++found;
    }
  }
  if (found != outputs.size()) {
    NameSet known;
    for (const MapPort& port : outputs_) {
      known.insert(port.name);
    }
    for (const std::string& name : outputs) {
      require(known.contains(name), "{}: the state map produces no tensor of this name", name);
    }
  }
  const std::vector<bool> everything(num_values_, true);
  const auto kept = steps_towards(needed, everything);
  return keep(kept, needed);
}

StateMap StateMap::from(const NameSet& inputs) const {
  std::vector<bool> there(num_values_, false);
  for (const MapPort& port : inputs_) {
    there[port.value] = inputs.contains(port.name);
  }
  for (const MapStep& step : steps_) {
    const bool possible =
        std::holds_alternative<Untie>(step.op)
            ? there[step.inputs.front()]
            : std::all_of(step.inputs.begin(), step.inputs.end(), [&](size_t value) { return there[value]; });
    for (const size_t value : step.outputs) {
      there[value] = possible;
    }
  }
  // Backward pass: drops inputs that are present but lead to no output.
  std::vector<bool> needed(num_values_, false);
  for (const MapPort& port : outputs_) {
    needed[port.value] = there[port.value];
  }
  const auto kept = steps_towards(needed, there);
  return keep(kept, needed);
}

StateMap StateMap::shard(int64_t total, int64_t index) const {
  require(total >= 1 && index >= 0 && index < total, "state map: expected 0 <= shard < {}, found {}", total, index);
  std::vector<StateGroup> all = groups();
  std::vector<std::pair<std::string, size_t>> order;
  for (size_t i = 0; i < all.size(); ++i) {
    order.emplace_back(*std::min_element(all[i].inputs.begin(), all[i].inputs.end()), i);
  }
  std::sort(order.begin(), order.end());
  NameSet mine;
  for (size_t i = 0; i < order.size(); ++i) {
    if (static_cast<int64_t>(i) % total == index) {
      for (const std::string& name : all[order[i].second].outputs) {
        mine.insert(name);
      }
    }
  }
  return to(mine);
}

StateMap StateMap::scope(const std::string& input_prefix, const std::string& output_prefix) const {
  StateMap result = *this;
  for (MapPort& port : result.inputs_) {
    port.name = input_prefix + port.name;
  }
  for (MapPort& port : result.outputs_) {
    port.name = output_prefix + port.name;
  }
  return result;
}

}  // namespace lehr::state
