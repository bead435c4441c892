#include "lehr/peft/stored_names.h"

#include <fmt/ranges.h>

#include <map>

namespace lehr::peft {

namespace {
constexpr const char* kModulesPrefix = "model.";  // of a backbone in transformers' modules

struct Names {
  std::vector<std::string> of_value;

  explicit Names(const state::StateMap& map) : of_value(map.num_values()) {
    for (const auto& ports : {map.inputs(), map.outputs()}) {
      for (const state::MapPort& port : ports) {
        of_value[port.value] = port.name;
      }
    }
  }
};

bool splits_rows(const state::MapOp& op) {
  const auto* split = std::get_if<state::Split>(&op);
  return split != nullptr && split->dim == 0;
}

bool stacks_experts(const state::MapOp& op) {
  const auto* stack = std::get_if<state::Stack>(&op);
  return stack != nullptr && stack->dim == 0;
}

// Returns which rows a parameter has, in order, if a split of rows and a concatenation make it; otherwise nothing.
std::vector<Range> row_order(const state::StateMap& map, const state::StateGroup& group) {
  const state::MapStep &first = map.steps()[group.steps.front()], &last = map.steps()[group.steps.back()];
  const auto* joined = std::get_if<state::Concatenate>(&last.op);
  const bool reorders = splits_rows(first.op) && joined != nullptr && joined->dim == 0;
  if (group.steps.size() != 2 || group.inputs.size() != 1 || group.outputs.size() != 1 || !reorders) {
    return {};
  }
  std::map<size_t, Range> rows;  // of each part
  int64_t row = 0;
  for (size_t i = 0; i < first.outputs.size(); ++i) {
    const int64_t size = std::get<state::Split>(first.op).sizes[i];
    rows[first.outputs[i]] = {row, row + size};
    row += size;
  }
  std::vector<Range> order;
  for (const size_t part : last.inputs) {
    order.push_back(rows.at(part));
  }
  return order;
}

// Adds the entries of parameters that several operations make, and returns which steps these are.
std::vector<bool> add_chains(const state::StateMap& map, std::map<size_t, std::vector<StoredName>>& by_input) {
  std::map<std::string, size_t> values;
  for (const state::MapPort& port : map.inputs()) {
    values[port.name] = port.value;
  }
  std::vector<bool> in_chain(map.steps().size());
  for (const state::StateGroup& group : map.groups()) {
    if (group.steps.size() < 2) {
      continue;
    }
    std::vector<std::string> operations;
    for (const size_t step : group.steps) {
      in_chain[step] = true;
      operations.push_back(state::describe(map.steps()[step].op));
    }
    if (const std::vector<Range> order = row_order(map, group); !order.empty()) {
      by_input[values.at(group.inputs.front())].push_back({.parameter = group.outputs.front(), .row_order = order});
      continue;
    }
    for (const std::string& input : group.inputs) {
      for (const std::string& output : group.outputs) {
        by_input[values.at(input)].push_back(
            {.parameter = output, .operation = fmt::format("{}", fmt::join(operations, ", then "))});
      }
    }
  }
  return in_chain;
}
}  // namespace

std::vector<StoredName> stored_names(const state::StateMap& map) {
  const Names names(map);
  std::map<size_t, std::vector<StoredName>> by_input;  // by the value index of the stored tensor
  std::vector<std::string> output_of(map.num_values());
  for (const state::MapPort& port : map.outputs()) {
    output_of[port.value] = port.name;
  }
  const std::vector<bool> in_chain = add_chains(map, by_input);
  for (size_t index = 0; index < map.steps().size(); ++index) {
    const state::MapStep& step = map.steps()[index];
    if (in_chain[index]) {
      continue;
    }
    const bool split = splits_rows(step.op);
    if (!split && !stacks_experts(step.op)) {
      for (const size_t input : step.inputs) {
        for (const size_t output : step.outputs) {
          by_input[input].push_back({.parameter = names.of_value[output], .operation = state::describe(step.op)});
        }
      }
      continue;
    }
    int64_t row = 0;
    for (size_t i = 0; split && i < step.outputs.size(); ++i) {
      const int64_t rows = std::get<state::Split>(step.op).sizes[i];
      by_input[step.inputs.front()].push_back(
          {.parameter = names.of_value[step.outputs[i]], .first_row = row, .rows = rows});
      row += rows;
    }
    for (size_t i = 0; !split && i < step.inputs.size(); ++i) {
      by_input[step.inputs[i]].push_back(
          {.parameter = names.of_value[step.outputs.front()], .expert = static_cast<int64_t>(i)});
    }
  }
  std::vector<StoredName> rows;
  for (const state::MapPort& input : map.inputs()) {
    const auto found = by_input.find(input.value);
    if (found == by_input.end()) {
      rows.push_back({.stored = input.name, .parameter = output_of[input.value]});
      continue;
    }
    for (StoredName& row : found->second) {
      row.stored = input.name;
      rows.push_back(row);
    }
  }
  return rows;
}

std::vector<StoredName> stored_names(const descriptor::ModelArgs& args) {
  auto names = stored_names(args.state_map(descriptor::ExpertLayout::per_expert));
  const std::string prefix = args.backbone_prefix();
  for (StoredName& entry : names) {
    if (entry.stored.starts_with(prefix)) {
      entry.stored.replace(0, prefix.size(), kModulesPrefix);
    }
  }
  return names;
}

namespace {
// Stored tensors that hold the same parameters, and the entries of each.
struct Table {
  std::vector<std::string> stored;
  std::vector<StoredName> parts;
};

state::StateMap table_map(const Table& table) {
  std::vector<state::StateMap> maps;
  const std::string& first = table.stored.front();
  if (table.stored.size() > 1) {
    maps.push_back(state::tie(first + " (tied)", table.stored).inverse());
  }
  const std::string source = table.stored.size() > 1 ? first + " (tied)" : first;
  std::vector<std::string> parameters;
  std::vector<int64_t> rows;
  for (const StoredName& part : table.parts) {
    parameters.push_back(part.parameter);
    rows.push_back(part.rows);
  }
  const std::vector<Range>& order = table.parts.front().row_order;
  maps.push_back(
      !order.empty()           ? state::reorder(source, parameters.front(), 0, order)
      : parameters.size() == 1 ? state::rename(source, parameters.front())
                               : state::split(source, parameters, 0, rows));
  return state::sequential(maps);
}
}  // namespace

state::StateMap to_map(const std::vector<StoredName>& names) {
  std::map<std::string, std::vector<StoredName>> by_stored;
  std::vector<std::string> order;
  std::map<std::string, std::vector<std::string>> experts;  // by parameter
  std::vector<std::string> expert_order;
  for (const StoredName& name : names) {
    if (name.expert) {
      if (experts[name.parameter].empty()) {
        expert_order.push_back(name.parameter);
      }
      experts[name.parameter].push_back(name.stored);
      continue;
    }
    if (by_stored[name.stored].empty()) {
      order.push_back(name.stored);
    }
    by_stored[name.stored].push_back(name);
  }
  std::map<std::string, size_t> table_of;  // by the first parameter
  std::vector<Table> tables;
  for (const std::string& stored : order) {
    const auto& parts = by_stored.at(stored);
    const auto [at, is_new] = table_of.emplace(parts.front().parameter, tables.size());
    if (is_new) {
      tables.push_back({.stored = {}, .parts = parts});
    }
    tables[at->second].stored.push_back(stored);
  }
  std::vector<state::StateMap> maps;
  for (const Table& table : tables) {
    maps.push_back(table_map(table));
  }
  for (const std::string& parameter : expert_order) {
    maps.push_back(state::stack(experts.at(parameter), parameter, 0));
  }
  return state::parallel(maps);
}

}  // namespace lehr::peft
