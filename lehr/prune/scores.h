// How much each part of a model matters, as a folder on disk: what scoring writes and pruning reads.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "lehr/base/node.h"
#include "lehr/base/torch.h"

namespace lehr::prune {

/// What has scores: one number for each of
enum class Kind {
  ffn_channels,     ///< the inner channels of a feed-forward block, (I)
  kv_heads,         ///< the KV heads, with the query heads that they serve, (n_kv)
  experts,          ///< the experts of a mixture, (E)
  expert_channels,  ///< the inner channels of each of them, (E, I)
  attention,        ///< the attention as a whole, (1)
  ffn,              ///< the feed-forward block or mixture as a whole, (1)
};

inline constexpr Kind kKinds[] = {
    Kind::ffn_channels, Kind::kv_heads, Kind::experts, Kind::expert_channels, Kind::attention, Kind::ffn};

/// The name in files: "ffn_channels", ...
const char* name_of(Kind kind);

/// A folder with
/// - scores.json: facts for people and tools (the model, how many tokens, the formula of each kind), free in form;
/// - scores.safetensors: float64 tensors layers.N.KIND, as layers.3.kv_heads.
///
/// A higher score is a part to keep, in every kind; NaN is lower than all others. A layer or a kind may be missing.
struct Scores {
  Node facts = Node::make_table();
  std::map<std::pair<int64_t, Kind>, at::Tensor> values;  ///< By layer and kind; float64 on the CPU.
  std::filesystem::path folder = {};                      ///< Where they were read from; empty: nowhere.

  /// Null if there are none.
  const at::Tensor* find(int64_t layer, Kind kind) const;
  /// Whether any layer has that kind.
  bool has(Kind kind) const;
};

/// Throws usage errors that name the file, and the tensor, for a folder without scores, a name that is no layer's or
/// kind's, another type than float64, and other numbers of dimensions.
Scores read_scores(const std::filesystem::path& folder);

/// Throws a usage error if write_scores cannot make that folder, or files in it: what is called so is a file, or the
/// folder, or else the nearest above it that is there, does not take one. Leaves nothing behind.
void require_writable(const std::filesystem::path& folder);

/// Makes the folder if it is not there, and replaces what scores it holds, when the new ones are on the disk. Values of
/// any floating-point type and device are stored as float64. Throws a runtime error if the disk does not take it; the
/// old ones then stand.
void write_scores(const std::filesystem::path& folder, const Scores& scores);

}  // namespace lehr::prune
