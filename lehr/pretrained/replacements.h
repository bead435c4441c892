// Replacements: the sub-blocks of a model that are taken from other models.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "lehr/config/node.h"

namespace lehr::pretrained {

/// A sub-block of a layer.
enum class Subblock { attention, ffn };
/// Both, in the order of a layer.
inline constexpr std::array kSubblocks = {Subblock::attention, Subblock::ffn};

/// Returns "attention" or "ffn", as in block configs and names of weight groups.
std::string name_of(Subblock subblock);

/// The source of a sub-block: the same sub-block in a layer of another model.
struct SubblockOrigin {
  std::filesystem::path model;  ///< Folder of a whole model.
  int64_t layer = 0;
};

/// The replacement of one sub-block.
struct Replacement {
  int64_t layer = 0;
  Subblock subblock = Subblock::attention;
  std::optional<SubblockOrigin> origin = {};  ///< Unset: a no-op.
  std::string where = {};                     ///< The origin of the request, for messages: "swap.json: [3].ffn".
  /// The block config in puzzletron's entry, which the source must match.
  std::optional<Node> block_config = {};
};

/// Reads a JSON file; folders in it are relative to its own. It is a list of
/// - {"layer": 3, "attention": {"model": DIR}, "ffn": {"no_op": true}}: one or both sub-blocks. Each is taken from the
///   layer of the same number in DIR, or from the one that the key "layer" in its table selects, as in {"model": DIR,
///   "layer": 5};
/// - puzzletron's entries, {"parent_layer_indices": [3], "child_block_configs": [...], "weight_paths": [...]}, where a
///   path is that of a file of a sub-block checkpoint, DIR/subblocks_safetensors/block_3_ffn.safetensors, and a no-op
///   sub-block has none. The path identifies DIR and a layer: the file need not exist if DIR has another layout;
///
/// or a table (a solution of puzzletron's) whose "chosen_replacements" is such a list, or a list of such tables (its
/// solutions.json), of which "FILE#2" selects the third. Throws a usage error with file and key for an empty list,
/// unknown keys, invalid values, a sub-block that is replaced twice, and a file of several solutions without "#".
std::vector<Replacement> read_replacements(const std::string& file);

}  // namespace lehr::pretrained
