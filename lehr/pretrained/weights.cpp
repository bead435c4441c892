#include "lehr/pretrained/weights.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "lehr/base/error.h"
#include "lehr/base/name_pattern.h"
#include "lehr/base/random.h"
#include "lehr/descriptor/text_config.h"
#include "lehr/pretrained/expected_surplus.h"
#include "lehr/state/dtype.h"
#include "lehr/state/map_stream.h"
#include "lehr/state/weights.h"

namespace lehr::pretrained {

namespace {
std::string list_some(const std::vector<std::string>& names) {
  constexpr size_t kShown = 8;
  const std::vector<std::string> shown(
      names.begin(), names.begin() + static_cast<long>(std::min(kShown, names.size())));
  return fmt::format(
      "{}{}", fmt::join(shown, ", "), names.size() > kShown ? fmt::format(" and {} more", names.size() - kShown) : "");
}

state::NameSet names_of(const state::TensorSpecs& specs) {
  state::NameSet names;
  for (const auto& [name, spec] : specs) {
    names.insert(name);
  }
  return names;
}
}  // namespace

state::StateMap checkpoint_map(const descriptor::ModelArgs& args, const state::WeightReader& reader) {
  state::StateMap map = args.state_map(descriptor::expert_layout_of(reader.names()));
  const std::string own = args.backbone_prefix();
  // The beginnings of the backbone's names in checkpoints of models of texts and images.
  std::string prefix = own;
  for (const std::string& of_text : descriptor::text_model_prefixes(own)) {
    const auto is_of = [&](const std::string& name) { return name.starts_with(of_text); };
    prefix = std::any_of(reader.names().begin(), reader.names().end(), is_of) ? of_text : prefix;
  }
  const bool is_bare = args.head() == descriptor::Head::embedding;
  const std::string embeddings = map.inputs().front().name;
  // A backbone alone, as models of embeddings are published: its names lack the prefix.
  if (!is_bare && embeddings.starts_with(own) && !reader.has(embeddings) && reader.has(embeddings.substr(own.size()))) {
    prefix = "";
  }
  if (is_bare ? !reader.has(prefix + embeddings) || reader.has(embeddings) : prefix == own) {
    return map;
  }
  std::vector<std::pair<std::string, std::string>> stored;
  for (const std::string& name : map.input_names()) {
    const std::string of_head = descriptor::kTextModelPrefix + name;
    if (is_bare) {  // from the checkpoint of a model with another head
      stored.emplace_back(prefix + name, name);
    } else if (name.starts_with(own)) {
      stored.emplace_back(prefix + name.substr(own.size()), name);
    } else {
      stored.emplace_back(reader.has(of_head) ? of_head : name, name);
    }
  }
  return state::sequential({state::rename(stored), map});
}

std::set<std::string> heads_beside(const descriptor::ModelArgs& args) {
  return args.head() == descriptor::Head::embedding
             ? std::set<std::string>{"lm_head.weight", "score.weight", "score.bias"}
             : std::set<std::string>{};
}

state::TensorSpecs parameter_specs(const nn::Module& model) {
  state::TensorSpecs specs;
  for (const auto& [name, parameter] : nn::named_parameters(model)) {
    specs[name] = {.shape = parameter->shape(), .dtype = state::dtype_of(parameter->value().scalar_type())};
  }
  return specs;
}

namespace {
bool matches_any(const std::string& name, const std::vector<NamePattern>& patterns) {
  return std::any_of(patterns.begin(), patterns.end(), [&](const auto& pattern) { return pattern.matches(name); });
}

std::vector<NamePattern> patterns_of(
    const LoadRules& rules, const std::vector<std::string>& wanted, const state::WeightReader& reader) {
  std::vector<NamePattern> patterns;
  for (const std::string& text : rules.exclude) {
    const NamePattern& pattern = patterns.emplace_back(text);
    const auto matches = [&](const std::string& name) { return pattern.matches(name); };
    require(
        std::any_of(wanted.begin(), wanted.end(), matches) ||
            std::any_of(reader.names().begin(), reader.names().end(), matches),
        "\"{}\" matches the whole name of no weight; the weights are {}",
        text,
        list_some(wanted));
  }
  return patterns;
}

state::NameSet own_outputs(const state::StateMap& map, const state::TensorSpecs& parameters) {
  state::NameSet own;
  for (const std::string& name : map.output_names()) {
    if (parameters.contains(name)) {
      own.insert(name);
    }
  }
  return own;
}

bool holds_integers(const state::TensorInfo& tensor) {
  const auto type = state::scalar_type(tensor.dtype);
  return type && at::isIntegralType(*type, /*includeBool=*/true);
}

// Requires that the tensors of a parameter are all read or all skipped.
void require_all_or_none(
    const state::StateMap& map, const state::NameSet& readable, const state::WeightReader& reader) {
  for (const state::StateGroup& group : map.groups()) {
    const auto is_there = [&](const std::string& name) { return readable.contains(name); };
    const auto found = std::find_if(group.inputs.begin(), group.inputs.end(), is_there);
    const auto gone = std::find_if_not(group.inputs.begin(), group.inputs.end(), is_there);
    require(
        found == group.inputs.end() || gone == group.inputs.end(),
        "{}: parameter {} consists of {} tensors, of which only some can be read: {} can, {} cannot; exclude all of "
        "them (checkpoint.exclude_from_loading), or none",
        reader.path().string(),
        group.outputs.front(),
        group.inputs.size(),
        found == group.inputs.end() ? "" : *found,
        gone == group.inputs.end() ? "" : *gone);
  }
}
}  // namespace

CheckpointDifference check_checkpoint(
    const state::StateMap& map,
    const state::TensorSpecs& parameters,
    const state::WeightReader& reader,
    const LoadRules& rules) {
  CheckpointDifference difference;
  const auto names = map.input_names();
  const auto excluded = patterns_of(rules, names, reader);
  // The checkpoint lacks these only for other stages.
  const auto mine = map.to(own_outputs(map, parameters)).input_names();
  const state::NameSet needed(mine.begin(), mine.end());
  state::NameSet wanted, readable;
  std::vector<std::string> missing;
  for (const std::string& name : names) {
    wanted.insert(name);
    if (matches_any(name, excluded)) {
      difference.excluded.push_back(name);
    } else if (reader.has(name)) {
      readable.insert(name);
    } else {
      const bool allowed = !rules.strict || rules.may_lack.contains(name) || !needed.contains(name);
      (allowed ? difference.lacked : missing).push_back(name);
    }
  }
  std::vector<std::string> misshapen, integers;
  const state::BoundMap expected(map.inverse().from(names_of(parameters)), parameters);
  for (const state::TensorInfo& tensor : expected.outputs()) {
    if (readable.contains(tensor.name) && !holds_integers(tensor) && holds_integers(reader.info(tensor.name))) {
      integers.push_back(fmt::format("{} ({})", tensor.name, state::dtype_name(reader.info(tensor.name).dtype)));
    }
    if (readable.contains(tensor.name) && reader.info(tensor.name).shape != tensor.shape) {
      misshapen.push_back(fmt::format(
          "{} (expected {}, found {})",
          tensor.name,
          fmt::join(tensor.shape, "x"),
          fmt::join(reader.info(tensor.name).shape, "x")));
    }
  }
  std::vector<std::string> surplus;
  const ExpectedSurplus expected_surplus(reader, wanted);
  for (const std::string& name : std::set<std::string>(reader.names().begin(), reader.names().end())) {
    if (wanted.contains(name)) {
      continue;
    }
    if (matches_any(name, excluded)) {
      difference.excluded.push_back(name);
    } else if (rules.may_have.contains(name) || expected_surplus.contains(name)) {
      difference.left_out.push_back(name);
    } else {
      (rules.strict ? surplus : difference.unexpected).push_back(name);
    }
  }
  require(missing.empty(), "{}: the checkpoint lacks {}", reader.path().string(), list_some(missing));
  require(
      misshapen.empty(),
      "{}: shapes differ from the model's: {}; is this the checkpoint of another model?",
      reader.path().string(),
      list_some(misshapen));
  require(
      integers.empty(),
      "{}: weights are integers, as a quantized checkpoint stores them: {}; dequantize the model with the library that "
      "quantized it, and save it in bfloat16",
      reader.path().string(),
      list_some(integers));
  require(surplus.empty(), "{}: unexpected tensors: {}", reader.path().string(), list_some(surplus));
  if (readable.size() < wanted.size()) {
    require_all_or_none(map, readable, reader);
  }
  return difference;
}

CheckpointDifference load_weights(
    nn::Module& model, const state::StateMap& map, const state::WeightReader& reader, const LoadRules& rules) {
  const state::TensorSpecs parameters = parameter_specs(model);
  auto difference = check_checkpoint(map, parameters, reader, rules);
  // Dtypes are those of the parameters, to which the values are cast, independent of the files.
  state::TensorSpecs stored = state::specs_of(reader);
  for (auto& [name, spec] : stored) {
    spec.dtype = state::DType::kF32;
  }
  for (const std::string& name : difference.excluded) {
    stored.erase(name);
  }
  const state::StateMap possible = map.from(names_of(stored));
  const state::StateMap mine = possible.to(own_outputs(possible, parameters));
  read_parameters(model, state::BoundMap(mine, stored), state::WeightSource(reader));
  return difference;
}

void read_parameters(nn::Module& model, const state::BoundMap& bound, const state::TensorSource& source) {
  const auto names = bound.map().output_names();
  const state::NameSet known(names.begin(), names.end());
  auto wanted = nn::named_parameters(model);
  std::erase_if(wanted, [&](const auto& named) { return !known.contains(named.name); });
  parallel_io(source.concurrent_reads(), static_cast<int64_t>(wanted.size()), [&](int64_t i) {
    const auto& [name, parameter] = wanted[static_cast<size_t>(i)];
    state::read_into(bound, source, name, parameter->box(), parameter->value());
  });
}

std::set<std::string> stored_state(const nn::Module& model, const state::StateMap& map) {
  state::NameSet names;
  for (const auto& [name, parameter] : nn::named_parameters(model)) {
    if (parameter->is_state()) {
      names.insert(name);
    }
  }
  const auto stored = map.to(names).input_names();
  return {stored.begin(), stored.end()};
}

LoadRules with_state(LoadRules rules, const nn::Module& model, const state::StateMap& map) {
  rules.may_lack.merge(stored_state(model, map));
  return rules;
}

StartedWeights load_or_start_weights(
    nn::Module& model,
    const descriptor::ModelArgs& args,
    const state::WeightReader& reader,
    const LoadRules& rules,
    uint64_t seed) {
  const state::StateMap map = checkpoint_map(args, reader);
  StartedWeights started{.difference = load_weights(model, map, reader, with_state(rules, model, map)), .fresh = {}};
  state::NameSet starting;
  for (const auto* names : {&started.difference.lacked, &started.difference.excluded}) {
    starting.insert(names->begin(), names->end());
  }
  const auto fresh = map.from(starting).output_names();
  started.fresh = {fresh.begin(), fresh.end()};
  for (const auto& [name, parameter] : nn::named_parameters(model)) {
    if (started.fresh.contains(name)) {
      at::Tensor value = parameter->value().detach();
      nn::fill(value, parameter->init(), seed, name, parameter->box(), parameter->shape());
    }
  }
  return started;
}

namespace {
// Every `step`-th element of a tensor in row-major order. Of a quantized one, only the blocks of these are decoded.
at::Tensor some_elements(const state::WeightReader& reader, const std::string& name, int64_t count, int64_t step) {
  if (!reader.quantized().contains(name)) {
    return reader.tensor(name).reshape(-1).slice(0, 0, {}, step);
  }
  const std::vector<int64_t>& shape = reader.info(name).shape;
  std::vector<at::Tensor> elements;
  for (int64_t i = 0; i < count; i += step) {
    Box box(shape.size());
    int64_t rest = i;
    for (size_t dim = shape.size(); dim-- > 0; rest /= shape[dim]) {
      box[dim] = {rest % shape[dim], rest % shape[dim] + 1};
    }
    elements.push_back(reader.region(name, box).reshape(-1));
  }
  return at::cat(elements);
}
}  // namespace

std::string weights_fingerprint(const state::WeightReader& reader) {
  constexpr int64_t kSamples = 64;
  auto names = reader.names();
  std::sort(names.begin(), names.end());
  std::string seen;
  for (const auto& name : names) {
    const std::vector<int64_t>& shape = reader.info(name).shape;
    const int64_t count = c10::multiply_integers(shape);
    const at::Tensor some = some_elements(reader, name, count, std::max<int64_t>(1, count / kSamples));
    seen += fmt::format("{} {} {};", name, fmt::join(shape, "x"), c10::toString(some.scalar_type()));
    const at::Tensor numbers = some.to(at::kDouble).contiguous();
    seen.append(reinterpret_cast<const char*>(numbers.const_data_ptr<double>()), numbers.nbytes());
  }
  return fmt::format("{:016x}", hash_name(seen));
}

std::vector<std::pair<std::string, at::Tensor>> stored_tensors_of(
    const std::vector<std::pair<std::string, at::Tensor>>& values, const state::StateMap& map) {
  const state::ValueSource source(values);
  const state::TensorSpecs specs = source.specs();
  std::vector<std::pair<std::string, at::Tensor>> tensors;
  state::stream(
      state::BoundMap(map.inverse().from(names_of(specs)), specs), source, [&](const state::MappedTensor& part) {
        tensors.emplace_back(part.name, part.tensor);
      });
  return tensors;
}

std::vector<std::pair<std::string, at::Tensor>> stored_tensors(const nn::Module& model, const state::StateMap& map) {
  std::vector<std::pair<std::string, at::Tensor>> values;
  for (const auto& [name, parameter] : nn::named_parameters(model)) {
    values.emplace_back(name, parameter->value());
  }
  return stored_tensors_of(values, map);
}

}  // namespace lehr::pretrained
