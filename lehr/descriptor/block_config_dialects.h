// What the readers of block configs share: tables that are read key by key, halves of a layer, and the one dialect that
// has no block_configs.
#pragma once

#include <string>
#include <vector>

#include "lehr/base/node.h"
#include "lehr/descriptor/block_config.h"

namespace lehr::descriptor {

/// Throws a usage error with file and key of the value before `why`.
[[noreturn]] void refuse(const Node& value, const std::string& why);

/// The entries of a table, read by name; what nobody asked for is unknown. null is as good as absent.
class Entries {
 public:
  /// Throws a usage error if it is no table.
  explicit Entries(const Node& table);

  const Node* get(const char* key);
  bool has(const char* key) const { return table_.find(key) != nullptr; }
  /// Throws a usage error if it is not there, or no integer.
  int64_t integer(const char* key);
  /// false if it is not there.
  bool flag(const char* key);
  /// Throws a usage error unless it is false or not there. `what` is as "sink tokens are".
  void refuse_flag(const char* key, const char* what);
  void refuse_value(const char* key, const char* what);

  /// Throws a usage error that lists the known keys if there are others.
  void finish() const;

 private:
  const Node& table_;
  std::vector<std::string> asked_;
};

/// Throws a usage error unless the table of a layer in block_configs has both halves, and nothing that is not known.
void require_halves(const Node& node);

/// One half of a layer, as block_configs have it in either dialect. Of `model` the sizes alone are looked at. Throws as
/// read_block_configs, but for sizes that do not fit, which are check_block_config's.
decltype(BlockConfig::attention) read_attention(const Node& node, const LayersByDefault& model);
decltype(BlockConfig::ffn) read_ffn(const Node& node, const LayersByDefault& model);

std::vector<BlockConfig> read_per_layer_config(const Node& table, const LayersByDefault& model);

}  // namespace lehr::descriptor
