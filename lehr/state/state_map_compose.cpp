// Leaf maps, and compositions of maps.
#include <algorithm>
#include <numeric>
#include <unordered_map>

#include "lehr/base/error.h"
#include "lehr/state/state_map.h"

namespace lehr::state {

namespace {
// Returns a map of one operation.
StateMap leaf(MapOp op, const std::vector<std::string>& sources, const std::vector<std::string>& targets) {
  std::vector<MapPort> inputs;
  std::vector<MapPort> outputs;
  MapStep step{std::move(op), {}, {}};
  size_t value = 0;
  for (const std::string& name : sources) {
    step.inputs.push_back(value);
    inputs.push_back({name, value++});
  }
  for (const std::string& name : targets) {
    step.outputs.push_back(value);
    outputs.push_back({name, value++});
  }
  return StateMap(std::move(inputs), {std::move(step)}, std::move(outputs), value);
}

void check_sizes(const MapOp& op, const std::string& subject, size_t tensors, const std::vector<int64_t>& sizes) {
  require(
      sizes.size() == tensors && std::all_of(sizes.begin(), sizes.end(), [](int64_t size) { return size >= 0; }),
      "{}: {}: expected one size for each of {} tensors",
      subject,
      describe(op),
      tensors);
}
}  // namespace

/// Merges graphs into one graph.
class StateMapBuilder {
 public:
  /// Adds the steps of `map`; `values` holds the number in this graph of each of its inputs' values. Returns the number
  /// in this graph of all its values.
  std::vector<size_t> append(const StateMap& map, const std::vector<size_t>& values) {
    constexpr size_t kNone = SIZE_MAX;
    std::vector<size_t> number(map.num_values(), kNone);
    for (size_t i = 0; i < values.size(); ++i) {
      number[map.inputs()[i].value] = values[i];
    }
    for (const MapStep& step : map.steps()) {
      MapStep& copy = steps_.emplace_back(MapStep{step.op, {}, {}});
      for (const size_t value : step.inputs) {
        copy.inputs.push_back(number[value]);
      }
      for (const size_t value : step.outputs) {
        copy.outputs.push_back(number[value] = num_values_++);
      }
      work_ += static_cast<int64_t>(step.inputs.size() + step.outputs.size());
    }
    work_ += map.work() + static_cast<int64_t>(map.num_values());
    return number;
  }
  size_t add_input(const std::string& name) {
    inputs_.push_back({name, num_values_});
    return num_values_++;
  }
  void count(size_t work) { work_ += static_cast<int64_t>(work); }
  StateMap finish(std::vector<MapPort> outputs) {
    StateMap map(std::move(inputs_), std::move(steps_), std::move(outputs), num_values_);
    map.work_ += work_;
    return map;
  }

 private:
  std::vector<MapPort> inputs_;
  std::vector<MapStep> steps_;
  size_t num_values_ = 0;
  int64_t work_ = 0;
};

StateMap identity(const std::vector<std::string>& names) {
  std::vector<std::pair<std::string, std::string>> pairs;
  pairs.reserve(names.size());
  for (const std::string& name : names) {
    pairs.emplace_back(name, name);
  }
  return rename(pairs);
}

StateMap rename(const std::string& source, const std::string& target) {
  return rename({{source, target}});
}

StateMap rename(const std::vector<std::pair<std::string, std::string>>& names) {
  std::vector<MapPort> inputs;
  std::vector<MapPort> outputs;
  for (const auto& [source, target] : names) {
    inputs.push_back({source, inputs.size()});
    outputs.push_back({target, outputs.size()});
  }
  const size_t count = inputs.size();
  return StateMap(std::move(inputs), {}, std::move(outputs), count);
}

StateMap stack(const std::vector<std::string>& sources, const std::string& target, int64_t dim) {
  return leaf(Stack{dim}, sources, {target});
}

StateMap unstack(const std::string& source, const std::vector<std::string>& targets, int64_t dim) {
  return leaf(Unstack{dim}, {source}, targets);
}

StateMap concatenate(
    const std::vector<std::string>& sources,
    const std::string& target,
    int64_t dim,
    const std::vector<int64_t>& sizes) {
  const Concatenate op{dim, sizes};
  check_sizes(op, target, sources.size(), sizes);
  return leaf(op, sources, {target});
}

StateMap split(
    const std::string& source,
    const std::vector<std::string>& targets,
    int64_t dim,
    const std::vector<int64_t>& sizes) {
  const Split op{dim, sizes};
  check_sizes(op, source, targets.size(), sizes);
  return leaf(op, {source}, targets);
}

StateMap reorder(const std::string& source, const std::string& target, int64_t dim, const std::vector<Range>& parts) {
  std::vector<size_t> in_source(parts.size());  // the parts in the order of the source
  std::iota(in_source.begin(), in_source.end(), size_t{0});
  std::stable_sort(
      in_source.begin(), in_source.end(), [&](size_t a, size_t b) { return parts[a].begin < parts[b].begin; });
  std::vector<std::string> names, names_in_source;
  std::vector<int64_t> sizes, sizes_in_source;
  for (size_t i = 0; i < parts.size(); ++i) {
    names.push_back(fmt::format("{}, part {}", target, i));
    sizes.push_back(parts[i].size());
  }
  int64_t end = 0;
  for (const size_t i : in_source) {
    require(
        parts[i].begin == end,
        "{}: expected parts that cover dimension {} once; the one after element {} begins at {}",
        source,
        dim,
        end,
        parts[i].begin);
    end = parts[i].end;
    names_in_source.push_back(names[i]);
    sizes_in_source.push_back(sizes[i]);
  }
  return sequential({split(source, names_in_source, dim, sizes_in_source), concatenate(names, target, dim, sizes)});
}

StateMap transpose(const std::string& source, const std::string& target, int64_t dim0, int64_t dim1) {
  return leaf(Transpose{dim0, dim1}, {source}, {target});
}

StateMap squeeze(const std::string& source, const std::string& target, int64_t dim) {
  return leaf(Squeeze{dim}, {source}, {target});
}

StateMap unsqueeze(const std::string& source, const std::string& target, int64_t dim) {
  return leaf(Unsqueeze{dim}, {source}, {target});
}

StateMap slice(const std::string& source, const std::string& target, int64_t dim, Range range, int64_t size) {
  const Slice op{dim, range, size};
  require(
      range.begin >= 0 && range.begin <= range.end && range.end <= size,
      "{}: {}: expected a range within the size",
      source,
      describe(op));
  return leaf(op, {source}, {target});
}

StateMap tie(const std::string& source, const std::vector<std::string>& targets) {
  return leaf(Tie{}, {source}, targets);
}

StateMap parallel(const std::vector<StateMap>& maps) {
  StateMapBuilder builder;
  std::vector<MapPort> outputs;
  for (const StateMap& map : maps) {
    std::vector<size_t> values;
    for (const MapPort& port : map.inputs()) {
      values.push_back(builder.add_input(port.name));
    }
    const std::vector<size_t> number = builder.append(map, values);
    for (const MapPort& port : map.outputs()) {
      outputs.push_back({port.name, number[port.value]});
    }
    builder.count(map.inputs().size() + map.outputs().size());
  }
  return builder.finish(std::move(outputs));
}

StateMap sequential(const std::vector<StateMap>& maps) {
  StateMapBuilder builder;
  NameSet taken;                                    // names read from the input
  std::vector<MapPort> given;                       // outputs of all maps, in order; later maps read some of them
  std::unordered_map<std::string, size_t> current;  // name -> index in `given`, for outputs not read yet
  for (const StateMap& map : maps) {
    std::vector<size_t> values;
    for (const MapPort& port : map.inputs()) {
      if (const auto found = current.find(port.name); found != current.end()) {
        values.push_back(given[found->second].value);
        current.erase(found);
        continue;
      }
      require(
          taken.insert(port.name).second,
          "{}: would be read twice by a state map: an earlier map of the sequence has read it",
          port.name);
      values.push_back(builder.add_input(port.name));
    }
    const std::vector<size_t> number = builder.append(map, values);
    for (const MapPort& port : map.outputs()) {
      require(
          current.emplace(port.name, given.size()).second,
          "{}: would be produced twice by a state map: two maps of the sequence produce it",
          port.name);
      given.push_back({port.name, number[port.value]});
    }
    builder.count(2 * map.inputs().size() + map.outputs().size());
  }
  std::vector<MapPort> outputs;
  for (size_t i = 0; i < given.size(); ++i) {
    const auto found = current.find(given[i].name);
    if (found != current.end() && found->second == i) {
      outputs.push_back(std::move(given[i]));
    }
  }
  builder.count(given.size());
  return builder.finish(std::move(outputs));
}

}  // namespace lehr::state
