// Reads "label text" lines and rows, and pads them into batches.
#include "lehr/data/classification.h"

#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
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

struct LabelledText {
  std::string text;
  int64_t label = 0;
};

/// Parses a line such as "1 a stirring film".
LabelledText parse_line(std::string_view line, const std::string& where) {
  LabelledText result;
  const auto [end, error] = std::from_chars(line.data(), line.data() + line.size(), result.label);
  const auto rest = line.substr(static_cast<size_t>(end - line.data()));
  require(
      error == std::errc() && (rest.empty() || rest.front() == ' ' || rest.front() == '\t'),
      "{}: expected a label, a space and a text, such as \"1 a stirring film\"",
      where);
  const size_t begin = rest.find_first_not_of(" \t");
  result.text = begin == std::string_view::npos ? "" : rest.substr(begin);
  return result;
}

LabelledText parse_json(simdjson::dom::parser& parser, const ExampleLine& line, const ClassificationOptions& options) {
  const simdjson::dom::element value = parse_row(parser, line);
  std::string_view text;
  LabelledText result;
  require(
      value.is_object() && value.at_key(options.text_key).get(text) == simdjson::SUCCESS,
      "{}: expected an object with a text under the key \"{}\"",
      line.where,
      options.text_key);
  require(
      value.at_key(options.label_key).get(result.label) == simdjson::SUCCESS,
      "{}: expected an integer under the key \"{}\"",
      line.where,
      options.label_key);
  result.text = text;
  return result;
}

}  // namespace

ClassificationBatch make_batch(
    const ClassificationDataset& dataset, const SampleOrder& order, const BatchPlan& plan, int64_t step) {
  const int64_t width = padded_width(
      order, plan, step, dataset.options().pad_to_multiple_of, dataset.options().max_length, [&](int64_t sample) {
        return static_cast<int64_t>(dataset.example(sample).ids.size());
      });
  const auto size = plan.rows_of(order.size());
  ClassificationBatch batch{
      .step = step,
      .input_ids = at::full({plan.num_rows, width}, dataset.pad_id(), at::kLong),
      .attention_mask = at::zeros({plan.num_rows, width}, at::kBool),
      .pooling_mask = at::zeros({plan.num_rows, width}, at::kBool),
      .labels = at::full({plan.num_rows}, kNoLabel, at::kLong)};
  for (int64_t row = 0; row < plan.num_rows; ++row) {
    const int64_t index = plan.first_sample(step) + plan.first_row + row;
    if (size && index >= *size) {
      continue;
    }
    const ClassificationExample& example = dataset.example(order.at(index).sample);
    const auto length = static_cast<int64_t>(example.ids.size());
    std::copy(example.ids.begin(), example.ids.end(), batch.input_ids.data_ptr<int64_t>() + row * width);
    std::fill_n(batch.attention_mask.data_ptr<bool>() + row * width, length, true);
    const auto pooled = std::find_if(
        example.ids.rbegin(), example.ids.rend() - 1, [&](int32_t id) { return id != dataset.options().pad_token_id; });
    batch.pooling_mask.data_ptr<bool>()[row * width + (example.ids.rend() - 1 - pooled)] = true;
    batch.labels.data_ptr<int64_t>()[row] = example.label;
  }
  return batch;
}

ClassificationDataset::ClassificationDataset(
    const std::filesystem::path& path, const Tokenizer& tokenizer, ClassificationOptions options)
    : ExampleDataset(std::move(options), tokenizer.padding_id()) {
  check_lengths(path, options_.max_length, options_.pad_to_multiple_of);
  for (const auto& file : example_files(path)) {
    read(file, tokenizer);
  }
  require(!examples_.empty(), "{}: contains no labelled text", path.string());
}

void ClassificationDataset::read(const std::filesystem::path& file, const Tokenizer& tokenizer) {
  const bool json = has_rows(file, TextKind::by_name);
  auto source = json ? open_rows(file, {.required = {options_.text_key, options_.label_key}}) : open_bytes(file);
  simdjson::dom::parser parser;
  read_example_lines(std::move(source), file, lone_surrogates_, [&](const ExampleLine& line) {
    const std::string& where = line.where;
    const LabelledText labelled = json ? parse_json(parser, line, options_) : parse_line(line.text, where);
    require(
        labelled.label >= 0 && labelled.label < kMostLabels,
        "{}: the label is {}, expected labels 0, 1, ..., below {}",
        where,
        labelled.label,
        kMostLabels);
    num_labels_ = std::max(num_labels_, labelled.label + 1);
    std::vector<int32_t> ids = tokenizer.encode(labelled.text);
    require(!ids.empty(), "{}: the text is empty", where);
    examples_.push_back(
        {with_special_tokens(std::move(ids), tokenizer.special_tokens(), options_.max_length, where), labelled.label});
  });
}

uint64_t ClassificationDataset::fingerprint(const SampleOrder::Options& order) const {
  NameHash hash;  // of a text that would be as large as the data
  hash.add(fmt::format("{}|{}|{}|{}", order.seed, order.shuffle, order.repeat, options_.max_length));
  for (const ClassificationExample& example : examples_) {
    hash.add(fmt::format("|{} {}", example.label, fmt::join(example.ids, " ")));
  }
  return hash.value();
}

}  // namespace lehr::data
