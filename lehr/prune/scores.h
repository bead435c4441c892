// Importance scores of a model's parts, as a folder on disk: lehr score writes it and lehr prune reads it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "lehr/base/torch.h"
#include "lehr/config/node.h"

namespace lehr::prune {

/// Parts of a model that have scores, with the shape of the scores of a layer.
enum class Kind {
  ffn_channels,     ///< The inner channels of a feed-forward block, (I).
  kv_heads,         ///< The KV heads, with the query heads that they serve, (n_kv).
  experts,          ///< The experts of an MoE layer, (E).
  expert_channels,  ///< The inner channels of each expert, (E, I).
  shared_channels,  ///< The inner channels of the shared expert of an MoE layer, (I).
  attention,        ///< The attention as a whole, (1).
  ffn,              ///< The feed-forward or MoE sub-block as a whole, (1).
};

/// All kinds, in order.
inline constexpr Kind kKinds[] = {
    Kind::ffn_channels,
    Kind::kv_heads,
    Kind::experts,
    Kind::expert_channels,
    Kind::shared_channels,
    Kind::attention,
    Kind::ffn};

/// Returns the name in files: "ffn_channels", ...
const char* name_of(Kind kind);

/// A folder with
/// - scores.json: facts for people and tools (model, number of tokens, the formula of each kind) in no fixed form;
/// - scores.safetensors: float64 tensors named layers.N.KIND, such as layers.3.kv_heads.
///
/// In every kind a higher score means more important; NaN ranks lowest. Layers and kinds may be missing.
struct Scores {
  Node facts = Node::make_table();
  std::map<std::pair<int64_t, Kind>, at::Tensor> values;  ///< By layer and kind; float64 on the CPU.
  std::filesystem::path folder = {};                      ///< The folder that they were read from; empty: none.

  /// Returns null if there are no such scores.
  const at::Tensor* find(int64_t layer, Kind kind) const;
  /// Returns whether any layer has that kind.
  bool has(Kind kind) const;
};

/// Reads scores. Throws usage errors that name the file, and the tensor, for a folder without scores, an unknown tensor
/// name, a dtype other than float64, and a wrong number of dimensions.
Scores read_scores(const std::filesystem::path& folder);

/// Throws a usage error if write_scores cannot create that folder or files in it: the path is a file, or the folder, or
/// its nearest existing parent, is not writable. Leaves nothing behind.
void require_writable(const std::filesystem::path& folder);

/// Creates the folder if needed, and replaces its scores once the new ones are on disk. Values of any floating-point
/// dtype and device are stored as float64. Throws a runtime error if the disk refuses the write; the old scores are
/// then kept.
void write_scores(const std::filesystem::path& folder, const Scores& scores);

}  // namespace lehr::prune
