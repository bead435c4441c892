#include "lehr/train/step_work.h"

#include <algorithm>

namespace lehr::train {

namespace {
void add_sequence(StepWork& work, int64_t tokens) {
  work.tokens += tokens;
  work.attention_pairs += tokens * (tokens + 1) / 2;
}

// Adds the documents of a row of T ids.
void add_documents(StepWork& work, const int64_t* ids, int64_t tokens) {
  for (int64_t begin = 0, end = 0; begin < tokens; begin = end) {
    end = std::find_if(ids + begin, ids + tokens, [&](int64_t id) { return id != ids[begin]; }) - ids;
    if (ids[begin] >= 0) {
      add_sequence(work, end - begin);
    }
  }
}

// Returns the length of the document in a row of T positions: it counts 0, 1, 2, ..., and padding has zeros. A row of
// padding has length 0, and one of other positions has no padding.
int64_t length_of(const int64_t* positions, int64_t tokens) {
  int64_t length = 0;
  while (length < tokens && positions[length] == length) {
    ++length;
  }
  const bool padded =
      std::all_of(positions + length, positions + tokens, [](int64_t position) { return position == 0; });
  return !padded ? tokens : length == 1 && tokens > 1 ? 0 : length;
}
}  // namespace

StepWork count_work(const TrainTask& task, const Batch& batch) {
  StepWork work{.valid = task.count_valid(batch)};
  if (const auto found = batch.find("document_ids"); found != batch.end()) {
    const at::Tensor ids = found->second.to(at::kLong).contiguous();  // (B, T)
    for (int64_t row = 0; row < ids.size(0); ++row) {
      add_documents(work, ids.const_data_ptr<int64_t>() + row * ids.size(1), ids.size(1));
    }
    return work;
  }
  if (const auto found = batch.find("attention_mask"); found != batch.end()) {
    const at::Tensor lengths = found->second.ne(0).sum(1);  // (B)
    for (int64_t row = 0; row < lengths.size(0); ++row) {
      add_sequence(work, lengths.const_data_ptr<int64_t>()[row]);
    }
    return work;
  }
  if (const auto found = batch.find("position_ids"); found != batch.end() && found->second.dim() == 2) {
    const at::Tensor positions = found->second.to(at::kLong).contiguous();  // (B, T)
    for (int64_t row = 0; row < positions.size(0); ++row) {
      const int64_t tokens = positions.size(1);
      add_sequence(work, length_of(positions.const_data_ptr<int64_t>() + row * tokens, tokens));
    }
    return work;
  }
  auto sequences = batch.find("input_ids");
  if (sequences == batch.end()) {
    sequences = std::find_if(batch.begin(), batch.end(), [](const auto& entry) { return entry.second.dim() >= 2; });
  }
  for (int64_t row = 0; sequences != batch.end() && row < sequences->second.size(0); ++row) {
    add_sequence(work, sequences->second.size(1));
  }
  return work;
}

at::Tensor token_mask(const Batch& batch) {
  at::Tensor mask;
  if (const auto documents = batch.find("document_ids"); documents != batch.end()) {
    mask = documents->second.ge(0);
  } else if (const auto padding = batch.find("attention_mask"); padding != batch.end()) {
    mask = padding->second.ne(0);
  } else if (const auto found = batch.find("position_ids"); found != batch.end() && found->second.dim() == 2) {
    const at::Tensor positions = found->second.to(at::kLong).contiguous();  // (B, T)
    const int64_t tokens = positions.size(1);
    mask = at::zeros(positions.sizes(), at::kBool);
    for (int64_t row = 0; row < positions.size(0); ++row) {
      mask[row].narrow(0, 0, length_of(positions.const_data_ptr<int64_t>() + row * tokens, tokens)).fill_(true);
    }
  }
  return mask.defined() && mask.all().item<bool>() ? at::Tensor() : mask;
}

}  // namespace lehr::train
