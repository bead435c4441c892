// Replacements: for halves of a model's layers, which other model they are to come from.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "lehr/base/node.h"

namespace lehr::train {

/// A half of a layer of a model.
enum class Half { attention, ffn };

/// "attention" or "ffn", as in block configs and names of groups.
std::string name_of(Half half);

/// The same half of a layer of another model.
struct SubblockOrigin {
  std::filesystem::path model;  ///< A whole model's folder.
  int64_t layer = 0;
};

/// What takes the place of one half of a layer.
struct Replacement {
  int64_t layer = 0;
  Half half = Half::attention;
  std::optional<SubblockOrigin> origin = {};  ///< None: a no-op.
  std::string where = {};                     ///< What asks for it, for messages: "swap.json: [3].ffn".
  /// What puzzletron's entries say of the half, as in block_configs: it must be what the origin has.
  std::optional<Node> block_config = {};
};

/// Reads a JSON file; folders in it are relative to its own. It is a list, of
/// - {"layer": 3, "attention": {"model": DIR}, "ffn": {"no_op": true}}: one half or both; "layer" within the table of a
///   half takes another layer of DIR than the same;
/// - puzzletron's entries, {"parent_layer_indices": [3], "child_block_configs": [...], "weight_paths": [...]}, where a
///   path is that of a file of a sub-block checkpoint, DIR/subblocks_safetensors/block_3_ffn.safetensors, and a half
///   that is a no-op has none. It names DIR and a layer: the file need not be there if DIR keeps its weights otherwise;
///
/// or a table (a solution of puzzletron's) whose "chosen_replacements" is such a list. Throws usage errors with file
/// and key for an empty list, unknown keys, other values, and a half that is replaced twice.
std::vector<Replacement> read_replacements(const std::filesystem::path& file);

}  // namespace lehr::train
