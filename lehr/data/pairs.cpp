// Reads pairs of texts, and pads them into batches.
#include "lehr/data/pairs.h"

#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "lehr/base/error.h"
#include "lehr/base/random.h"
#include "lehr/data/byte_source.h"
#include "lehr/data/corpus.h"
#include "lehr/data/example_rows.h"
#include "lehr/data/rows.h"

namespace lehr::data {
namespace {

// Returns the place in the global batch of an example of this rank. The ranks' micro-batches alternate.
int64_t place_of(int64_t example, const BatchPlan& plan, int64_t microbatch) {
  const int64_t ranks = plan.global_batch_size / plan.num_rows;
  const int64_t rank = plan.first_row / plan.num_rows;
  return (example / microbatch * ranks + rank) * microbatch + example % microbatch;
}

PairsBatch make_batch(
    const PairsDataset& dataset, const SampleOrder& order, const BatchPlan& plan, int64_t microbatch, int64_t step) {
  const int64_t width = padded_width(
      order, plan, step, dataset.options().pad_to_multiple_of, dataset.options().max_length, [&](int64_t sample) {
        size_t longest = 0;
        for (const auto& ids : dataset.example(sample)) {
          longest = std::max(longest, ids.size());
        }
        return static_cast<int64_t>(longest);
      });
  const int64_t num_texts = dataset.options().num_texts(), rows = plan.num_rows * num_texts;
  const auto size = plan.rows_of(order.size());
  PairsBatch batch{
      .step = step,
      .input_ids = at::full({rows, width}, dataset.pad_id(), at::kLong),
      .attention_mask = at::zeros({rows, width}, at::kBool),
      .pooling_mask = at::zeros({rows, width}, at::kBool),
      .valid = at::zeros({rows}, at::kBool)};
  for (int64_t i = 0; i < plan.num_rows; ++i) {
    const int64_t index = plan.first_sample(step) + place_of(i, plan, microbatch);
    const bool padding = size && index >= *size;
    for (int64_t text = 0; text < num_texts; ++text) {
      const int64_t row = i * num_texts + text, first = row * width;
      if (padding) {
        batch.pooling_mask.data_ptr<bool>()[first] = true;
        continue;
      }
      const auto& ids = dataset.example(order.at(index).sample)[static_cast<size_t>(text)];
      const auto length = static_cast<int64_t>(ids.size());
      std::copy(ids.begin(), ids.end(), batch.input_ids.data_ptr<int64_t>() + first);
      std::fill_n(batch.attention_mask.data_ptr<bool>() + first, length, true);
      batch.pooling_mask.data_ptr<bool>()[first + length - 1] = true;
      batch.valid.data_ptr<bool>()[row] = true;
    }
  }
  return batch;
}

int64_t checked_microbatch(const BatchPlan& plan, std::optional<int64_t> given) {
  const int64_t microbatch = given.value_or(plan.num_rows);
  require(
      microbatch > 0 && plan.num_rows > 0 && plan.num_rows % microbatch == 0 &&
          plan.global_batch_size % plan.num_rows == 0 && plan.first_row % plan.num_rows == 0,
      "batch plan: examples [{}, {}) of a global batch of {} are not a share of micro-batches of {}",
      plan.first_row,
      plan.first_row + plan.num_rows,
      plan.global_batch_size,
      microbatch);
  return microbatch;
}

}  // namespace

std::vector<std::string> PairsOptions::keys() const {
  std::vector<std::string> keys{anchor_key, positive_key};
  if (!negative_key.empty()) {
    keys.push_back(negative_key);
  }
  return keys;
}

PairsDataset::PairsDataset(const std::filesystem::path& path, const Tokenizer& tokenizer, PairsOptions options)
    : ExampleDataset(std::move(options), tokenizer.padding_id()) {
  check_lengths(path, options_.max_length, options_.pad_to_multiple_of);
  for (const auto& file : example_files(path)) {
    read(file, tokenizer);
  }
  require(!examples_.empty(), "{}: contains no pair of texts", path.string());
}

void PairsDataset::read(const std::filesystem::path& file, const Tokenizer& tokenizer) {
  const std::vector<std::string> keys = options_.keys();
  auto source = open_rows(file, {.required = keys});
  simdjson::dom::parser parser;
  read_example_lines(std::move(source), file, lone_surrogates_, [&](const ExampleLine& line) {
    const std::string& where = line.where;
    const simdjson::dom::element value = parse_row(parser, line);
    PairsExample& example = examples_.emplace_back();
    for (const std::string& key : keys) {
      std::string_view text;
      require(
          value.is_object() && value.at_key(key).get(text) == simdjson::SUCCESS,
          "{}: expected an object with a text under the key \"{}\"",
          where,
          key);
      std::vector<int32_t> ids = tokenizer.encode(text);
      require(!ids.empty(), "{}: the text under \"{}\" is empty", where, key);
      example.push_back(with_special_tokens(std::move(ids), tokenizer.special_tokens(), options_.max_length, where));
    }
  });
}

PairsLoader::PairsLoader(
    std::shared_ptr<const PairsDataset> dataset,
    SampleOrder::Options order,
    BatchPlan plan,
    std::optional<int64_t> microbatch,
    PrefetchOptions options)
    : pipeline_(example_batches(
          dataset->size(),
          order,
          plan,
          options,
          [dataset, plan, together = checked_microbatch(plan, microbatch)](const SampleOrder& samples, int64_t step) {
            return make_batch(*dataset, samples, plan, together, step);
          })) {}

uint64_t PairsDataset::fingerprint(const SampleOrder::Options& order) const {
  NameHash hash;  // of a text that would be as large as the data
  hash.add(fmt::format("{}|{}|{}|{}", order.seed, order.shuffle, order.repeat, options_.max_length));
  for (const PairsExample& example : examples_) {
    for (const auto& ids : example) {
      hash.add(fmt::format("|{}", fmt::join(ids, " ")));
    }
    hash.add("\n");
  }
  return hash.value();
}

}  // namespace lehr::data
