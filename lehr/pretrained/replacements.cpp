#include "lehr/pretrained/replacements.h"

#include <algorithm>
#include <charconv>
#include <set>

#include "lehr/base/error.h"
#include "lehr/config/json.h"
#include "lehr/descriptor/block_config_dialects.h"
#include "lehr/pretrained/subblocks.h"

namespace lehr::pretrained {

namespace {
namespace fs = std::filesystem;
using descriptor::Entries;
using descriptor::refuse;

std::string place_of(const Node& node) {
  return node.origin() + ": " + node.key();
}

int64_t layer_of(const Node& number) {
  if (number.as_int() < 0) {
    refuse(number, fmt::format("expected the index of a layer from 0, found {}", number.as_int()));
  }
  return number.as_int();
}

fs::path model_folder(const Node& path, const fs::path& base) {
  if (path.as_string().empty()) {
    refuse(path, "expected a model's folder, found \"\"");
  }
  return (base / path.as_string()).lexically_normal();
}

Replacement read_subblock(const Node& node, int64_t layer, Subblock subblock, const fs::path& base) {
  Entries entries(node);
  Replacement replacement{.layer = layer, .subblock = subblock, .where = place_of(node)};
  const bool no_op = entries.flag("no_op");
  const Node* model = entries.get("model");
  const Node* other = entries.get("layer");
  if (no_op == (model != nullptr) || (other != nullptr && model == nullptr)) {
    refuse(node, R"(expected {"model": DIR}, {"model": DIR, "layer": NUMBER} or {"no_op": true})");
  }
  entries.finish();
  if (model != nullptr) {
    replacement.origin = {.model = model_folder(*model, base), .layer = other != nullptr ? layer_of(*other) : layer};
  }
  return replacement;
}

std::vector<Replacement> read_own(const Node& node, const fs::path& base) {
  Entries entries(node);
  entries.get("layer");
  const int64_t layer = layer_of(node.at("layer"));
  std::vector<Replacement> found;
  for (const Subblock subblock : kSubblocks) {
    if (const Node* given = entries.get(name_of(subblock).c_str())) {
      found.push_back(read_subblock(*given, layer, subblock, base));
    }
  }
  entries.finish();
  if (found.empty()) {
    refuse(node, R"(expected "attention", "ffn" or both, found neither)");
  }
  return found;
}

// Parses ".../DIR/subblocks_safetensors/block_3_ffn.safetensors" as layer 3 of DIR.
std::pair<Subblock, SubblockOrigin> read_weight_path(const Node& node, const fs::path& base) {
  const fs::path path = model_folder(node, base);
  const std::string stem = path.stem().string();
  const std::string prefix = "block_";
  for (const Subblock subblock : kSubblocks) {
    const std::string ending = "_" + name_of(subblock);
    if (!stem.starts_with(prefix) || !stem.ends_with(ending) || stem.size() <= prefix.size() + ending.size()) {
      continue;
    }
    const char* begin = stem.data() + prefix.size();
    const char* end = stem.data() + stem.size() - ending.size();
    int64_t layer = 0;
    const auto [stopped, error] = std::from_chars(begin, end, layer);
    const bool is_file = path.extension() == ".safetensors" && path.parent_path().filename() == kSubblocksFolder;
    if (error == std::errc() && stopped == end && layer >= 0 && is_file) {
      return {subblock, {.model = path.parent_path().parent_path(), .layer = layer}};
    }
  }
  refuse(
      node,
      fmt::format(
          "expected DIR/{}/block_N_attention.safetensors or block_N_ffn.safetensors, found \"{}\"",
          kSubblocksFolder,
          node.as_string()));
}

const Node& the_only(const Node& list, const char* what) {
  if (list.items().size() != 1) {
    refuse(list, fmt::format("expected one {}, found {}; merging layers is not supported", what, list.size()));
  }
  return list.at(0);
}

std::vector<Replacement> read_puzzletrons(const Node& node, const fs::path& base) {
  Entries entries(node);
  for (const char* key : {"parent_layer_indices", "child_block_configs", "weight_paths"}) {
    entries.get(key);
  }
  const int64_t layer = layer_of(the_only(node.at("parent_layer_indices"), "layer"));
  const Node& block = the_only(node.at("child_block_configs"), "block config");
  std::vector<Replacement> found;
  for (const Node& path : node.at("weight_paths").items()) {
    auto [subblock, origin] = read_weight_path(path, base);
    found.push_back({.layer = layer, .subblock = subblock, .origin = std::move(origin), .where = place_of(path)});
  }
  entries.finish();
  descriptor::require_subblocks(block);
  for (const Subblock subblock : kSubblocks) {
    const Node& config = block.at(name_of(subblock));
    const Node* flag = config.find("no_op");
    const bool no_op = flag != nullptr && !flag->is_null() && flag->as_bool();
    const bool has_path =
        std::any_of(found.begin(), found.end(), [&](const Replacement& one) { return one.subblock == subblock; });
    if (no_op == has_path) {
      refuse(
          node.at("weight_paths"),
          fmt::format(
              "expected {} for {}, according to its block config", no_op ? "no file" : "a file", name_of(subblock)));
    }
    if (no_op) {
      found.push_back({.layer = layer, .subblock = subblock, .where = place_of(config)});
    }
    for (Replacement& one : found) {
      if (one.subblock == subblock) {
        one.block_config = config;
      }
    }
  }
  return found;
}
}  // namespace

std::string name_of(Subblock subblock) {
  return subblock == Subblock::attention ? "attention" : "ffn";
}

namespace {
bool is_solution(const Node& node) {
  return node.is_table() && node.find("chosen_replacements") != nullptr;
}

// Splits "FILE#2" into FILE and 2; the number is unset for a file whose own name has the "#".
std::pair<fs::path, std::optional<size_t>> split_solution(const std::string& file) {
  const size_t hash = file.rfind('#');
  if (hash == std::string::npos || file.find('/', hash) != std::string::npos || fs::exists(file)) {
    return {file, std::nullopt};
  }
  size_t index = 0;
  const char* end = file.data() + file.size();
  const auto [stopped, error] = std::from_chars(file.data() + hash + 1, end, index);
  require(
      error == std::errc() && stopped == end,
      "{}: expected the number of a solution after \"#\", such as \"{}#0\"",
      file,
      file.substr(0, hash));
  return {file.substr(0, hash), index};
}

// The solution that is meant: the file itself, or one in its list.
const Node& solution_in(const Node& root, std::optional<size_t> index, const std::string& file) {
  const bool has_many = root.is_list() && !root.items().empty() && is_solution(root.at(0));
  require(
      has_many || !index,
      "{}: the file has no list of solutions, so none has a number; leave out \"#\" and what follows",
      file);
  if (!has_many) {
    return root;
  }
  require(
      index || root.size() == 1,
      "{}: holds {} solutions; select one, from \"{}#0\" to \"{}#{}\"",
      file,
      root.size(),
      file,
      file,
      root.size() - 1);
  require(!index || *index < root.size(), "{}: the file has {} solutions, counted from 0", file, root.size());
  return root.at(index.value_or(0));
}
}  // namespace

std::vector<Replacement> read_replacements(const std::string& file) {
  const auto [path, index] = split_solution(file);
  const Node all_solutions = parse_json_file(path);
  const Node& root = solution_in(all_solutions, index, file);
  const fs::path base = fs::absolute(path).parent_path();
  const Node& list = root.is_table() ? root.at("chosen_replacements") : root;
  require(
      !list.items().empty(),
      "{}: expected replacements, found an empty list, which would leave the model unchanged",
      root.is_table() ? place_of(list) : list.origin());
  std::vector<Replacement> all;
  std::set<std::pair<int64_t, Subblock>> seen;
  for (const Node& entry : list.items()) {
    const bool is_own = entry.find("parent_layer_indices") == nullptr;
    for (Replacement& one : is_own ? read_own(entry, base) : read_puzzletrons(entry, base)) {
      if (!seen.emplace(one.layer, one.subblock).second) {
        refuse(entry, fmt::format("the {} of layer {} is replaced twice", name_of(one.subblock), one.layer));
      }
      all.push_back(std::move(one));
    }
  }
  return all;
}

}  // namespace lehr::pretrained
