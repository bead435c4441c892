#include "lehr/search/costs.h"

#include "lehr/base/log.h"
#include "lehr/base/value_of.h"

namespace lehr::search {

namespace {
using pretrained::Subblock;

}  // namespace

const char* name_of(CostKind kind) {
  switch (kind) {
    case CostKind::parameters:
      return "parameters";
    case CostKind::active_parameters:
      return "active_parameters";
    case CostKind::memory:
      return "memory";
    case CostKind::kv_cache:
      return "kv_cache";
    case CostKind::prefill_flops:
      return "prefill_flops";
    case CostKind::decode_flops:
      return "decode_flops";
    case CostKind::prefill_seconds:
      return "prefill_seconds";
    case CostKind::decode_seconds:
      return "decode_seconds";
  }
  return "";
}

std::string with_unit(CostKind kind, double value) {
  switch (kind) {
    case CostKind::memory:
    case CostKind::kv_cache:
      return human_bytes(value);
    case CostKind::prefill_seconds:
    case CostKind::decode_seconds:
      return fmt::format("{:.3g} ms", 1e3 * value);
    default:
      return human_count(value);
  }
}

bool is_measured(CostKind kind) {
  return kind == CostKind::prefill_seconds || kind == CostKind::decode_seconds;
}

double Cost::of(CostKind kind) const {
  switch (kind) {
    case CostKind::parameters:
      return static_cast<double>(account.num_parameters);
    case CostKind::active_parameters:
      return static_cast<double>(account.active_parameters);
    case CostKind::memory:
      return static_cast<double>(account.weight_bytes) + account.kv_cache_bytes;
    case CostKind::kv_cache:
      return account.kv_cache_bytes;
    case CostKind::prefill_flops:
      return account.prefill_flops;
    case CostKind::decode_flops:
      return account.decode_flops;
    case CostKind::prefill_seconds:
      return prefill_seconds;
    case CostKind::decode_seconds:
      return decode_seconds;
  }
  return 0;
}

Cost& Cost::operator+=(const Cost& other) {
  account += other.account;
  prefill_seconds += other.prefill_seconds;
  decode_seconds += other.decode_seconds;
  return *this;
}

const Cost& CostTable::of(const Place& place) const {
  return (place.subblock == Subblock::attention ? attention : ffn)
      .at(static_cast<size_t>(place.layer))
      .at(place.variant);
}

Cost CostTable::of(const Choice& choice) const {
  Cost sum = fixed;
  for (size_t layer = 0; layer < attention.size(); ++layer) {
    sum += attention[layer].at(choice.attention[layer]);
    sum += ffn[layer].at(choice.ffn[layer]);
  }
  return sum;
}

CostTable count_costs(const DecoderPieces& pieces, const SearchSpace& space, const descriptor::Workload& work) {
  const auto form = pieces.args().decoder_form();
  CostTable table;
  std::vector<descriptor::BlockConfig> blocks = pieces.blocks();
  const auto account = [&] { return descriptor::account_for(value_of(form, "decoder_form"), blocks, work); };
  const descriptor::ModelAccount whole = account();
  table.fixed.account = whole.embeddings;
  table.fixed.account += whole.head;
  for (size_t layer = 0; layer < blocks.size(); ++layer) {
    const descriptor::BlockConfig own = blocks[layer];
    table.attention.emplace_back();
    table.ffn.emplace_back();
    for (const Variant& variant : space[layer].attention) {
      blocks[layer].attention = variant.block.attention;
      table.attention.back().push_back({.account = account().layers[layer].attention});
    }
    blocks[layer] = own;
    for (const Variant& variant : space[layer].ffn) {
      blocks[layer].ffn = variant.block.ffn;
      table.ffn.back().push_back({.account = account().layers[layer].ffn});
    }
    blocks[layer] = own;
  }
  return table;
}

}  // namespace lehr::search
