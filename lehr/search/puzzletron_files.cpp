#include "lehr/search/puzzletron_files.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "lehr/base/error.h"
#include "lehr/base/file.h"
#include "lehr/config/json.h"
#include "lehr/pretrained/subblocks.h"
#include "lehr/search/child.h"

namespace lehr::search {

namespace {
namespace fs = std::filesystem;
using pretrained::kSubblocks;
using pretrained::Subblock;

constexpr double kMiB = 1024.0 * 1024.0;

template <class... Values>
Node list_of(Values&&... values) {
  Node list = Node::make_list();
  (list.push_back(Node(std::forward<Values>(values))), ...);
  return list;
}

Node block_node(const descriptor::BlockConfig& block) {
  return descriptor::write_block_configs({block}).at(0);
}

// The files of one search, with paths as they will be when the folder has its name.
class Writer {
 public:
  Writer(const Library& library, fs::path folder) : library_(library), folder_(fs::absolute(folder)) {}

  // The models that hold the variants: the teacher's, and one for each further variant of a sub-block.
  void write_models(const fs::path& teacher, const fs::path& into, const descriptor::ModelFamilies& families) const {
    const auto write = [&](const std::string& name, const Choice& choice) {
      write_child(library_, choice, teacher, into / name, families, ChildLayout::subblocks);
    };
    fs::create_directories(into);
    write("teacher", teacher_choice(space()));
    for (const Subblock subblock : kSubblocks) {
      for (size_t variant = 1;; ++variant) {
        Choice choice = teacher_choice(space());
        bool has_weights = false, is_there = false;
        for (size_t layer = 0; layer < space().size(); ++layer) {
          const auto& variants = space()[layer].of(subblock);
          is_there = is_there || variant < variants.size();
          if (variant < variants.size() && !variants[variant].is_no_op) {
            choice.of({.layer = static_cast<int64_t>(layer), .subblock = subblock}) = variant;
            has_weights = true;
          }
        }
        if (!is_there) {
          break;
        }
        if (has_weights) {
          write(model_of(subblock, variant), choice);
        }
      }
    }
  }

  Node library() const {
    Node entries = Node::make_list();
    for (size_t layer = 0; layer < space().size(); ++layer) {
      for (size_t attention = 0; attention < space()[layer].attention.size(); ++attention) {
        for (size_t ffn = 0; ffn < space()[layer].ffn.size(); ++ffn) {
          entries.push_back(replacement(layer, attention, ffn));
        }
      }
    }
    return entries;
  }

  Node solutions(const std::vector<PuzzletronSolution>& all) const {
    Node list = Node::make_list();
    for (const PuzzletronSolution& one : all) {
      const Choice& choice = one.choice;
      Node chosen = Node::make_list();
      std::vector<std::string> words;
      for (size_t layer = 0; layer < space().size(); ++layer) {
        chosen.push_back(replacement(layer, choice.attention[layer], choice.ffn[layer]));
        words.push_back(fmt::format(
            "block_{}: attention {} ffn {}",
            layer,
            space()[layer].attention[choice.attention[layer]].name,
            space()[layer].ffn[choice.ffn[layer]].name));
      }
      Node costs = Node::make_table();
      costs.set("stats.num_params", Node(one.cost.account.num_parameters));
      costs.set("stats.memory_mib", Node(one.cost.of(CostKind::memory) / kMiB));
      costs.set("stats.runtime_ms", Node(1e3 * one.cost.prefill_seconds));
      Node solution = Node::make_table();
      solution.set("chosen_replacements", std::move(chosen));
      solution.set("total_value", Node(one.value));
      solution.set("total_costs", std::move(costs));
      solution.set("chosen_block_configs", descriptor::write_block_configs(blocks_of(space(), choice)));
      solution.set("solution_repr", Node(fmt::format("{}", fmt::join(words, "\n"))));
      list.push_back(std::move(solution));
    }
    return list;
  }

  Node statistics(const CostTable& costs, const descriptor::Workload& work) const {
    Node subblocks = Node::make_list();
    for (const Place& place : all_variants(space())) {
      const bool is_attention = place.subblock == Subblock::attention;
      Node one = costs_node(costs.of(place));
      one.set("subblock_config", block_node(at(space(), place).block).at(pretrained::name_of(place.subblock)));
      one.set("subblock_config_class", Node(std::string(is_attention ? "AttentionConfig" : "FFNConfig")));
      one.set("parent_layer_index", Node(place.layer));
      one.set("active_params", Node(costs.of(place).account.active_parameters));
      subblocks.push_back(std::move(one));
    }
    Node args = Node::make_table();
    args.set("batch_size", Node(work.num_sequences));
    args.set("prefill_seq_len", Node(work.num_tokens));
    args.set("generation_seq_len", Node(int64_t{0}));
    Node statistics = Node::make_table();
    statistics.set("args", std::move(args));
    statistics.set("non_block", costs_node(costs.fixed));
    statistics.set("subblocks", std::move(subblocks));
    return list_of(std::move(statistics));
  }

 private:
  const SearchSpace& space() const { return library_.space(); }

  static std::string model_of(Subblock subblock, size_t variant) {
    return variant == 0 ? "teacher" : fmt::format("{}_{}", pretrained::name_of(subblock), variant);
  }

  static Node costs_node(const Cost& cost) {
    Node node = Node::make_table();
    node.set("num_params", Node(cost.account.num_parameters));
    node.set("memory_mib", Node(cost.of(CostKind::memory) / kMiB));
    node.set("kv_cache_memory_mib", Node(cost.of(CostKind::kv_cache) / kMiB));
    node.set("prefill_runtime_ms", Node(1e3 * cost.prefill_seconds));
    node.set("decode_runtime_ms", Node(1e3 * cost.decode_seconds));
    node.set("runtime_ms", Node(1e3 * cost.prefill_seconds));  // generation_seq_len is 0
    return node;
  }

  Node replacement(size_t layer, size_t attention, size_t ffn) const {
    const LayerSpace& variants = space()[layer];
    Node paths = Node::make_list();
    for (const Subblock subblock : kSubblocks) {
      const size_t variant = subblock == Subblock::attention ? attention : ffn;
      if (!variants.of(subblock).at(variant).is_no_op) {
        const fs::path file = fs::path(pretrained::kSubblocksFolder) /
                              fmt::format("block_{}_{}.safetensors", layer, pretrained::name_of(subblock));
        paths.push_back(Node((folder_ / "ckpts" / model_of(subblock, variant) / file).string()));
      }
    }
    Node entry = Node::make_table();
    entry.set("parent_layer_indices", list_of(static_cast<int64_t>(layer)));
    entry.set(
        "child_block_configs",
        descriptor::write_block_configs(
            {{.attention = variants.attention.at(attention).block.attention, .ffn = variants.ffn.at(ffn).block.ffn}}));
    entry.set("weight_paths", std::move(paths));
    return entry;
  }

  const Library& library_;
  fs::path folder_;
};
}  // namespace

void write_puzzletron_files(
    const Library& library,
    const CostTable& costs,
    const descriptor::Workload& work,
    const std::vector<PuzzletronSolution>& solutions,
    const fs::path& teacher,
    const fs::path& folder,
    const descriptor::ModelFamilies& families) {
  pretrained::require_new_folder(folder);
  const fs::path unfinished = folder.string() + ".unfinished";
  fs::remove_all(unfinished);
  const Writer writer(library, folder);
  writer.write_models(teacher, unfinished / "ckpts", families);
  write_file_atomically(unfinished / "replacement_library.json", to_json(writer.library(), true) + "\n");
  write_file_atomically(unfinished / "subblock_stats.json", to_json(writer.statistics(costs, work), true) + "\n");
  write_file_atomically(unfinished / "solutions.json", to_json(writer.solutions(solutions), true) + "\n");
  fs::rename(unfinished, folder);
}

}  // namespace lehr::search
