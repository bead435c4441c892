// Reads rows of words and labels, and pads them into batches.
#include "lehr/data/token_classification.h"

#include <ATen/ops/arange.h>
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
#include "lehr/data/packing.h"
#include "lehr/data/rows.h"

namespace lehr::data {
namespace {

simdjson::dom::array list_of(
    const simdjson::dom::element& row, const std::string& key, const std::string& where, const char* items) {
  simdjson::dom::array list;
  require(
      row.is_object() && row.at_key(key).get(list) == simdjson::SUCCESS,
      "{}: expected an object with a list of {} under the key \"{}\"",
      where,
      items,
      key);
  return list;
}

std::vector<std::string> words_of(
    const simdjson::dom::element& row, const TokenClassificationOptions& options, const std::string& where) {
  std::vector<std::string> words;
  for (const simdjson::dom::element item : list_of(row, options.tokens_key, where, "words")) {
    std::string_view word;
    require(
        item.get(word) == simdjson::SUCCESS,
        "{}: {}[{}]: expected a word, a string",
        where,
        options.tokens_key,
        words.size());
    words.emplace_back(word);
  }
  require(!words.empty(), "{}: {}: the list is empty; remove the row", where, options.tokens_key);
  return words;
}

std::vector<int64_t> labels_of(
    const simdjson::dom::element& row, const TokenClassificationOptions& options, const std::string& where) {
  std::vector<int64_t> labels;
  for (const simdjson::dom::element item : list_of(row, options.tags_key, where, "labels")) {
    int64_t label = 0;
    require(
        item.get(label) == simdjson::SUCCESS,
        "{}: {}[{}]: expected an integer, the number of a label",
        where,
        options.tags_key,
        labels.size());
    require(
        label >= 0 && label < kMostLabels,
        "{}: {}[{}]: the label is {}, expected labels 0, 1, ..., below {}",
        where,
        options.tags_key,
        labels.size(),
        label,
        kMostLabels);
    labels.push_back(label);
  }
  return labels;
}

}  // namespace

TokenClassificationBatch make_batch(
    const TokenClassificationDataset& dataset, const SampleOrder& order, const BatchPlan& plan, int64_t step) {
  const int64_t width = padded_width(
      order, plan, step, dataset.options().pad_to_multiple_of, dataset.options().max_length, [&](int64_t sample) {
        return static_cast<int64_t>(dataset.example(sample).ids.size());
      });
  const auto size = plan.rows_of(order.size());
  TokenClassificationBatch batch{
      .step = step,
      .input_ids = at::full({plan.num_rows, width}, dataset.pad_id(), at::kLong),
      .position_ids = at::arange(width, at::kLong).repeat({plan.num_rows, 1}),
      .attention_mask = at::zeros({plan.num_rows, width}, at::kBool),
      .labels = at::full({plan.num_rows, width}, kNoLabel, at::kLong)};
  for (int64_t row = 0; row < plan.num_rows; ++row) {
    const int64_t index = plan.first_sample(step) + plan.first_row + row;
    if (size && index >= *size) {
      continue;
    }
    const TokenClassificationExample& example = dataset.example(order.at(index).sample);
    std::copy(example.ids.begin(), example.ids.end(), batch.input_ids.data_ptr<int64_t>() + row * width);
    std::copy(example.labels.begin(), example.labels.end(), batch.labels.data_ptr<int64_t>() + row * width);
    std::fill_n(batch.attention_mask.data_ptr<bool>() + row * width, example.ids.size(), true);
  }
  return batch;
}

TokenClassificationDataset::TokenClassificationDataset(
    const std::filesystem::path& path, const Tokenizer& tokenizer, TokenClassificationOptions options)
    : ExampleDataset(std::move(options), tokenizer.padding_id()) {
  check_lengths(path, options_.max_length, options_.pad_to_multiple_of);
  for (const auto& file : example_files(path)) {
    read(file, tokenizer);
  }
  require(!examples_.empty(), "{}: contains no labelled words", path.string());
}

void TokenClassificationDataset::read(const std::filesystem::path& file, const Tokenizer& tokenizer) {
  auto source = open_rows(file, {.required = {options_.tokens_key, options_.tags_key}});
  simdjson::dom::parser parser;
  read_example_lines(std::move(source), file, lone_surrogates_, [&](const ExampleLine& line) {
    const std::string& where = line.where;
    const simdjson::dom::element row = parse_row(parser, line);
    const std::vector<std::string> words = words_of(row, options_, where);
    const std::vector<int64_t> labels = labels_of(row, options_, where);
    require(
        words.size() == labels.size(),
        "{}: {} has {} labels for the {} words of {}; expected one for each word",
        where,
        options_.tags_key,
        labels.size(),
        words.size(),
        options_.tokens_key);
    TokenClassificationExample example;
    for (size_t i = 0; i < words.size(); ++i) {
      const std::vector<int32_t> ids = tokenizer.encode_word(words[i]);
      if (!ids.empty()) {
        example.labels.push_back(labels[i]);
        example.labels.resize(example.labels.size() + ids.size() - 1, kNoLabel);
        example.ids.insert(example.ids.end(), ids.begin(), ids.end());
      }
      num_labels_ = std::max(num_labels_, labels[i] + 1);
    }
    require(!example.ids.empty(), "{}: {}: all words are empty; remove the row", where, options_.tokens_key);
    const SpecialTokens special = tokenizer.special_tokens();
    example.ids = with_special_tokens(example.ids, special, options_.max_length, where);
    example.labels.insert(example.labels.begin(), special.before.size(), kNoLabel);
    example.labels.resize(example.ids.size() - special.after.size());
    example.labels.resize(example.ids.size(), kNoLabel);
    examples_.push_back(std::move(example));
  });
}

uint64_t TokenClassificationDataset::fingerprint(const SampleOrder::Options& order) const {
  NameHash hash;  // of a text that would be as large as the data
  hash.add(fmt::format("{}|{}|{}|{}", order.seed, order.shuffle, order.repeat, options_.max_length));
  for (const TokenClassificationExample& example : examples_) {
    hash.add(fmt::format("|{}", fmt::join(example.ids, " ")));
    hash.add(fmt::format("|{}", fmt::join(example.labels, " ")));
  }
  return hash.value();
}

}  // namespace lehr::data
