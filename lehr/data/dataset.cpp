// Sequences of several corpora in one order.
#include "lehr/data/dataset.h"

#include <algorithm>
#include <string>
#include <utility>

#include "lehr/base/error.h"
#include "lehr/base/random.h"

namespace lehr::data {
namespace {

constexpr int64_t kSampledTokens = 1024;

std::vector<SampleOrder::Dataset> sizes_and_weights(const std::vector<MixedDataset::Part>& parts) {
  std::vector<SampleOrder::Dataset> result;
  for (const auto& part : parts) {
    require(
        part.rows.seq_len() == parts.front().rows.seq_len(),
        "{}: packed to sequences of {} tokens, but {} to sequences of {}",
        part.rows.stream().name(),
        part.rows.seq_len(),
        parts.front().rows.stream().name(),
        parts.front().rows.seq_len());
    result.push_back({.size = part.rows.size(), .weight = part.weight});
  }
  return result;
}

}  // namespace

Sample RowDataset::sample_at(int64_t index) const {
  const auto length = static_cast<size_t>(seq_len());
  Sample sample{
      std::vector<int64_t>(length),
      std::vector<int64_t>(length),
      std::vector<int64_t>(length),
      std::vector<int64_t>(length)};
  fill(index, {sample.input_ids.data(), sample.labels.data(), sample.position_ids.data(), sample.document_ids.data()});
  return sample;
}

MixedDataset::MixedDataset(std::vector<Part> parts, SampleOrder::Options options)
    : parts_(std::move(parts)), order_(sizes_and_weights(parts_), options) {
  std::string text = fmt::format("{}|{}|{}|{}", options.seed, options.shuffle, options.repeat, seq_len());
  for (const Part& part : parts_) {
    const TokenStream& stream = part.rows.stream();
    text += fmt::format(
        "|{} {} {} {} {}",
        stream.num_tokens(),
        stream.num_documents(),
        stream.tokenizer_fingerprint(),
        part.rows.size(),
        part.weight);
    // A sample of the tokens: reading all of them would cost as much as a step.
    const int64_t count = std::min<int64_t>(stream.num_tokens(), kSampledTokens);
    for (int64_t i = 0; i < count; ++i) {
      int64_t token = 0;
      stream.copy(i * (stream.num_tokens() / count), 1, &token);
      text += fmt::format("{}{}", stream.is_learned(i * (stream.num_tokens() / count)) ? "," : ";", token);
    }
  }
  fingerprint_ = hash_name(text);
}

void MixedDataset::fill(int64_t index, const RowSpan& out) const {
  const SampleOrder::Place place = order_.at(index);
  parts_[place.dataset].rows.fill(place.sample, out);
}

}  // namespace lehr::data
