#include "lehr/model/decoder_state_map.h"

#include <fmt/format.h>

#include <algorithm>

namespace lehr::model {

namespace {
constexpr std::string_view kTable = ".token_embedding.";  // before the segment of a vocabulary
constexpr std::string_view kGroupedExperts = ".grouped_experts.";
constexpr std::string_view kSharedExpert = ".mlp.shared_expert.";    // one expert, with the width of all of them
constexpr const char* kStoredSharedExpert = ".mlp.shared_experts.";  // DeepSeek-V3's name
constexpr std::string_view kConvQuery = ".conv1d.query";             // the first of the three parts of conv1d.weight
constexpr const char* kExpertBias = ".mlp.router.expert_bias";
constexpr const char* kStoredExpertBias = ".mlp.gate.e_score_correction_bias";  // DeepSeek-V3's name

// Splits the table `whole` by rows into the segments of the vocabulary, whose names begin with `prefix`.
state::StateMap table(const std::string& whole, const std::string& prefix, const nn::SplitVocabulary& vocabulary) {
  std::vector<std::string> segments;
  std::vector<int64_t> rows;
  for (const std::string& segment : vocabulary.order) {
    segments.push_back(prefix + segment + ".weight");
    rows.push_back(vocabulary.sizes.at(segment));
  }
  return segments.size() == 1 ? state::rename(whole, segments.front()) : state::split(whole, segments, 0, rows);
}

// The map of one MoE layer. `layer` is a name such as "model.layers.3.mlp"; `parameters` are its experts' parameters in
// the order of the model.
state::StateMap experts_map(
    const std::string& layer, const std::vector<nn::NamedParameter>& parameters, descriptor::ExpertLayout layout) {
  const std::string ours = layer + std::string(kGroupedExperts);
  const std::string theirs = layer + ".experts.";
  const bool joined = parameters.front().name.starts_with(ours + "gate_up_proj.");
  if (joined) {
    std::vector<state::StateMap> maps;  // gpt-oss stores matrices as (E, in, out), in one layout only
    for (const auto& [name, parameter] : parameters) {
      const std::string projection = name.substr(ours.size(), name.rfind('.') - ours.size());
      maps.push_back(
          name.ends_with(".bias") ? state::rename(theirs + projection + "_bias", name)
                                  : state::transpose(theirs + projection, name, 1, 2));
    }
    return state::parallel(maps);
  }
  const std::vector<int64_t> shape = parameters.front().parameter->shape();  // (E, I, H) of the gate projections
  if (layout == descriptor::ExpertLayout::fused) {
    if (parameters.front().name == ours + "up_proj.weight") {  // without gates
      return state::rename(
          {{theirs + "up_proj", ours + "up_proj.weight"}, {theirs + "down_proj", ours + "down_proj.weight"}});
    }
    return state::parallel(
        {state::split(
             theirs + "gate_up_proj", {ours + "gate_proj.weight", ours + "up_proj.weight"}, 1, {shape[1], shape[1]}),
         state::rename(theirs + "down_proj", ours + "down_proj.weight")});
  }
  // Such checkpoints store one tensor per expert.
  std::vector<state::MapPort> inputs;
  std::vector<state::MapStep> stacks(parameters.size(), state::MapStep{state::Stack{0}, {}, {}});
  for (int64_t expert = 0; expert < shape[0]; ++expert) {
    for (size_t i = 0; i < parameters.size(); ++i) {
      stacks[i].inputs.push_back(inputs.size());
      const std::string projection = parameters[i].name.substr(ours.size());
      inputs.push_back({fmt::format("{}{}.{}", theirs, expert, projection), inputs.size()});
    }
  }
  std::vector<state::MapPort> outputs;
  size_t value = inputs.size();
  for (size_t i = 0; i < parameters.size(); ++i) {
    stacks[i].outputs = {value};
    outputs.push_back({parameters[i].name, value++});
  }
  return {std::move(inputs), std::move(stacks), std::move(outputs), value};
}
}  // namespace

state::StateMap decoder_state_map(
    const nn::Module& model,
    const nn::SplitVocabulary& vocabulary,
    descriptor::ExpertLayout layout,
    descriptor::Head head_kind) {
  const std::string head = "lm_head.lm_head.";
  const std::string router = ".mlp.router.gate.";
  std::vector<state::StateMap> maps;
  const auto parameters = nn::named_parameters(model);
  // A shared expert with a gate is Qwen2-MoE's, whose name is the one here.
  const auto has_gate = [&](const std::string& name) {
    const std::string gate = name.substr(0, name.find(kSharedExpert)) + ".mlp.shared_expert_gate.weight";
    return std::any_of(parameters.begin(), parameters.end(), [&](const auto& one) { return one.name == gate; });
  };
  for (size_t i = 0; i < parameters.size();) {
    const std::string& name = parameters[i].name;
    size_t end = i + 1;
    // Parameters that are mapped together are adjacent.
    auto take = [&](const std::string& prefix) {
      while (end < parameters.size() && parameters[end].name.starts_with(prefix)) {
        ++end;
      }
    };
    if (const size_t end_of_table = name.find(kTable); end_of_table != std::string::npos) {
      const std::string segments = name.substr(0, end_of_table) + std::string(kTable);
      take(segments);
      maps.push_back(table(name.substr(0, end_of_table) + ".weight", segments, vocabulary));
    } else if (name.starts_with(head)) {
      take(head);
      maps.push_back(table("lm_head.weight", head, vocabulary));
    } else if (const size_t at = name.find(kGroupedExperts); at != std::string::npos) {
      take(name.substr(0, at) + std::string(kGroupedExperts));
      const std::vector<nn::NamedParameter> experts(
          parameters.begin() + static_cast<long>(i), parameters.begin() + static_cast<long>(end));
      maps.push_back(experts_map(name.substr(0, at), experts, layout));
    } else if (const size_t gate = name.find(router); gate != std::string::npos) {
      maps.push_back(state::rename(name.substr(0, gate) + ".mlp.gate." + name.substr(gate + router.size()), name));
    } else if (const size_t bias = name.find(kExpertBias); bias != std::string::npos) {
      maps.push_back(state::rename(name.substr(0, bias) + kStoredExpertBias, name));
    } else if (const size_t shared = name.find(kSharedExpert); shared != std::string::npos && !has_gate(name)) {
      maps.push_back(state::rename(
          name.substr(0, shared) + kStoredSharedExpert + name.substr(shared + kSharedExpert.size()), name));
    } else if (name.ends_with(kConvQuery)) {
      const std::string conv = name.substr(0, name.size() - kConvQuery.size()) + ".conv1d.";
      take(conv);
      std::vector<std::string> parts;
      std::vector<int64_t> rows;
      for (size_t part = i; part < end; ++part) {
        parts.push_back(parameters[part].name);
        rows.push_back(parameters[part].parameter->shape()[0]);
      }
      maps.push_back(state::split(conv + "weight", parts, 0, rows));
    } else if (name == "cls_head.score.weight" || name == "cls_head.score.bias") {
      maps.push_back(state::rename(name.substr(std::string("cls_head.").size()), name));
    } else {
      maps.push_back(state::identity({name}));
    }
    i = end;
  }
  state::StateMap map = state::parallel(maps);
  if (head_kind != descriptor::Head::embedding) {
    return map;
  }
  // Hugging Face stores a bare backbone without the prefix.
  std::vector<std::pair<std::string, std::string>> bare;
  for (const std::string& name : map.input_names()) {
    bare.emplace_back(name.substr(std::string("model.").size()), name);
  }
  return state::sequential({state::rename(bare), map});
}

}  // namespace lehr::model
