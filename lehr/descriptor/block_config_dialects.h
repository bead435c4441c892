// Shared parts of the block config readers: tables that are read key by key, the sub-blocks of a layer, and the format
// without block_configs.
#pragma once

#include <string>
#include <vector>

#include "lehr/config/node.h"
#include "lehr/descriptor/block_config.h"

namespace lehr::descriptor {

/// Throws a usage error that consists of the value's origin and key, and `why`.
[[noreturn]] void refuse(const Node& value, const std::string& why);

/// The entries of a table, read by name; finish() reports unread entries as unknown. null is equivalent to absent.
class Entries {
 public:
  /// Throws a usage error if the node is not a table.
  explicit Entries(const Node& table);

  const Node* get(const char* key);
  bool has(const char* key) const { return table_.find(key) != nullptr; }
  /// Throws a usage error if the entry is absent or not an integer.
  int64_t integer(const char* key);
  /// Returns false if the entry is absent.
  bool flag(const char* key);
  /// Throws a usage error unless the entry is false or absent. `what` completes "... not supported", such as "sink
  /// tokens are".
  void refuse_flag(const char* key, const char* what);
  void refuse_value(const char* key, const char* what);

  /// Throws a usage error that lists the known keys if there are other keys.
  void finish() const;

 private:
  const Node& table_;
  std::vector<std::string> asked_;
};

/// Throws a usage error unless a layer's table in block_configs has both sub-blocks and no unknown keys.
void require_subblocks(const Node& node);

/// Reads one sub-block of a layer from either format of block_configs. Uses only the sizes of `model`. Throws the
/// errors of read_block_configs, except for inconsistent sizes, which check_block_config reports.
decltype(BlockConfig::attention) read_attention(const Node& node, const LayersByDefault& model);
decltype(BlockConfig::ffn) read_ffn(const Node& node, const LayersByDefault& model);

/// Reads per_layer_config, one block config per layer: `model` with the differences that `table` lists.
std::vector<BlockConfig> read_per_layer_config(const Node& table, const LayersByDefault& model);

}  // namespace lehr::descriptor
