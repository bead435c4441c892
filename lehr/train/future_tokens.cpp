#include "lehr/train/future_tokens.h"

#include <algorithm>

#include "lehr/nn/head.h"

namespace lehr::train {

namespace {
std::string ahead(const char* name, int64_t depth) {
  return fmt::format("{}+{}", name, depth);
}

// The values `depth` positions later; those after the sequence repeat the last one.
at::Tensor shifted(const at::Tensor& values, int64_t depth) {
  const int64_t tokens = values.size(1), moved = std::min(depth, tokens - 1);
  const at::Tensor last = values.narrow(1, tokens - 1, 1).expand({values.size(0), moved});
  return at::cat({values.narrow(1, moved, tokens - moved), last}, 1);
}
}  // namespace

pipeline::TensorDict with_future_tokens(pipeline::TensorDict batch, int64_t depths) {
  if (depths == 0) {
    return batch;
  }
  const at::Tensor ids = batch.at("input_ids"), labels = batch.at("labels");
  const auto documents = batch.find("document_ids");
  const int64_t tokens = ids.size(1);
  const at::Tensor place = at::arange(tokens, ids.options());
  for (int64_t depth = 1; depth <= depths; ++depth) {
    at::Tensor outside = place.add(depth).ge(tokens).unsqueeze(0);  // (1, T), or (B, T) with documents
    if (documents != batch.end()) {
      outside = outside.logical_or(shifted(documents->second, depth).ne(documents->second));
    }
    batch[ahead("input_ids", depth)] = shifted(ids, depth);
    batch[ahead("labels", depth)] = shifted(labels, depth).masked_fill(outside, nn::kIgnoreIndex);
  }
  return batch;
}

bool is_labels(const std::string& name) {
  return name == "labels" || name.starts_with("labels+");
}

void add_future_tokens(const pipeline::TensorDict& batch, nn::ModelInputs& inputs) {
  std::vector<at::Tensor> ids, labels;
  for (int64_t depth = 1; batch.contains(ahead("labels", depth)); ++depth) {
    ids.push_back(batch.at(ahead("input_ids", depth)));
    labels.push_back(batch.at(ahead("labels", depth)));
  }
  if (!ids.empty()) {
    inputs.future_ids = at::stack(ids, 2);
    inputs.future_labels = at::stack(labels, 2);
  }
}

}  // namespace lehr::train
