// Fields and checks of the section [data].
#include "lehr/data/data_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

namespace lehr::data {

void DatasetConfig::fields(FieldVisitor& v) {
  v.required(
      "path",
      path,
      "A file, a folder or a pattern (train-*.parquet), whose files are read in the order of their names.");
  v.choice(
      "kind",
      kind,
      {{"auto", DatasetKind::by_name},
       {"tokens", DatasetKind::tokens},
       {"text", DatasetKind::text},
       {"jsonl", DatasetKind::jsonl},
       {"classification", DatasetKind::classification},
       {"token_classification", DatasetKind::token_classification},
       {"pairs", DatasetKind::pairs},
       {"chat", DatasetKind::chat}},
      "Kind of the data. auto: by name (.tokens; JSON lines: .jsonl, .ndjson or .json; tables, whose rows are read as "
      "JSON lines: .parquet or .arrow; else text; .gz and .zst are decompressed). classification: lines \"label text\", "
      "or JSON lines or tables with a text and a label. token_classification: JSON lines or tables with a list of words "
      "and a list of their labels. pairs: JSON lines or tables with an anchor and a positive. chat: conversations, as "
      "JSON lines, tables or one JSON list. A .csv is not read as a table; convert it to JSON lines.");
  v.optional(
      "weight", weight, "Share of the training sequences, relative to the weights of other datasets.", positive());
  v.optional("text_key", text_key, "JSON lines: the key of the text; tables: the column.");
  v.optional("label_key", label_key, "JSON lines with labels: the key of the label; tables: the column.");
  v.optional("tokens_key", tokens_key, "JSON lines with labelled words: the key of the words; tables: the column.");
  v.optional(
      "tags_key", tags_key, "JSON lines with labelled words: the key of the labels, integers; tables: the column.");
  v.optional("anchor_key", anchor_key, "Pairs: the key or column of the anchor, such as a question.");
  v.optional("positive_key", positive_key, "Pairs: the key or column of the text that belongs to the anchor.");
  v.optional(
      "negative_key",
      negative_key,
      "Pairs: the key or column of a hard negative, a similar text that does not belong to the anchor. Unset: only the "
      "texts of other pairs are negatives.");
  v.optional(
      "pad_to_multiple_of",
      pad_to_multiple_of,
      "Labels and pairs: a batch is as long as its longest text, rounded up to a multiple of this many tokens, but at most "
      "training.seq_len. parallelism.tensor_parallel_degree must divide it, and with context parallelism twice "
      "context_parallel_degree times that.",
      at_least(1));
  v.optional(
      "split_documents",
      split_documents,
      "Text: the end of a document. \"\": the end of the file; \"line\": every line is a document; \"blank_line\": "
      "blank lines; anything else is a separator, such as \"<|endoftext|>\".");
  v.optional(
      "messages_key",
      messages_key,
      "Chat: the key or column of a conversation's messages: OpenAI's, with \"role\" and \"content\", or ShareGPT's, with "
      "\"from\" and \"value\". In JSON, \"conversations\" is found without this key.");
  v.optional(
      "prompt_key",
      prompt_key,
      "Chat without messages: the key of the question, such as \"instruction\"; requires answer_key.");
  v.optional("input_key", input_key, "Chat without messages: the key of an optional text that follows the question.");
  v.optional("answer_key", answer_key, "Chat without messages: the key of the answer, such as \"output\".");
  v.choice(
      "too_long",
      too_long,
      {{"drop", TooLong::drop}, {"truncate", TooLong::truncate}},
      "Chat: handling of conversations longer than training.seq_len tokens. drop: they are dropped, and counted; "
      "truncate: their end is cut off.");
}

void DataConfig::fields(FieldVisitor& v) {
  v.optional("seed", seed, "Seed of the order of the data; unset: debug.seed.", at_least(0));
  v.optional(
      "shuffle", shuffle, "Visit the sequences of each dataset in random order, a different one in every epoch.");
  v.optional(
      "repeat",
      repeat,
      "Start over when a dataset is used up; otherwise training ends after one pass, without the last sequences if they "
      "do not fill a step.");
  v.choice(
      "packing",
      packing,
      {{"concat", Packing::concat}, {"whole", Packing::whole}},
      "Packing of documents into sequences. concat: documents are concatenated and cut at the sequence's end; whole: "
      "only whole documents, as many as fit, then padding. Conversations are always whole.");
  v.optional(
      "validation_fraction",
      validation_fraction,
      "Fraction of each dataset, at its end, that is held out for validation.",
      from_below(0, 1));
  v.optional(
      "validation_path",
      validation_path,
      "Data for validation, instead of a part of the training data. Its kind follows from its name; options of labels, "
      "pairs and conversations are those of the training data.");
  v.optional(
      "cache_folder",
      cache_folder,
      "Folder for tokenized text, reused between runs; unset: a folder in job.dump_folder.");
  v.optional(
      "num_workers", num_workers, "Threads that prepare batches; 0: batches are prepared on request.", between(0, 256));
  v.optional("prefetch", prefetch, "Maximum number of batches prepared ahead.", between(1, 1024));
  v.list("datasets", datasets, "Training data: one or several datasets, mixed by weight.");
}

namespace {
// The kinds whose examples stay apart, one or a few sequences each, with their names.
constexpr std::pair<DatasetKind, const char*> kExamples[] = {
    {DatasetKind::classification, "classification"},
    {DatasetKind::token_classification, "token_classification"},
    {DatasetKind::pairs, "pairs"}};

void check_keys(const DatasetConfig& dataset, const std::string& prefix, Problems& problems) {
  const auto key = [&](const char* field) { return prefix + field; };
  if (dataset.kind == DatasetKind::chat) {
    if (dataset.prompt_key.empty() != dataset.answer_key.empty()) {
      problems.add(
          key(dataset.prompt_key.empty() ? "prompt_key" : "answer_key"),
          "prompt_key and answer_key name the question and the answer of a conversation; set both, or neither");
    }
    if (!dataset.input_key.empty() && dataset.prompt_key.empty()) {
      problems.add(key("input_key"), "requires prompt_key: its text follows the question");
    }
    if (dataset.messages_key.empty()) {
      problems.add(key("messages_key"), "is empty; expected the name of a key, such as \"messages\"");
    }
  } else if (!dataset.prompt_key.empty() || !dataset.input_key.empty() || !dataset.answer_key.empty()) {
    problems.add(key("kind"), "prompt_key, input_key and answer_key require kind = \"chat\"");
  }
  if (dataset.anchor_key.empty() || dataset.positive_key.empty()) {
    problems.add(
        key(dataset.anchor_key.empty() ? "anchor_key" : "positive_key"),
        "is empty; expected the name of a key, such as \"anchor\"");
  }
  if (!dataset.negative_key.empty() && dataset.kind != DatasetKind::pairs) {
    problems.add(key("negative_key"), "requires kind = \"pairs\"");
  }
}
}  // namespace

void DataConfig::check(Problems& problems) const {
  if (datasets.empty()) {
    problems.add("data.datasets", "at least one [[data.datasets]] with a path is needed");
  }
  if (validation_fraction > 0 && !validation_path.empty()) {
    problems.add(
        "data.validation_fraction", "validation data already comes from data.validation_path; remove one of them");
  }
  const auto* examples =
      std::find_if(std::begin(kExamples), std::end(kExamples), [&](const auto& example) { return has(example.first); });
  const bool apart = examples != std::end(kExamples);
  for (size_t i = 0; i < datasets.size(); ++i) {
    const DatasetConfig& dataset = datasets[i];
    const std::string prefix = fmt::format("data.datasets.{}.", i);
    if (dataset.path.empty()) {
      problems.add(prefix + "path", "is empty; expected a file or a folder");
    }
    if (!repeat && dataset.weight != 1.0) {
      problems.add(prefix + "weight", "one pass uses every sequence once, so weights require data.repeat = true");
    }
    check_keys(dataset, prefix, problems);
    if (apart && dataset.kind != examples->first) {
      problems.add(prefix + "kind", fmt::format("\"{}\" and other data cannot be mixed", examples->second));
    }
  }
  if (apart && datasets.size() > 1) {
    problems.add("data.datasets", fmt::format("kind = \"{}\" requires exactly one dataset", examples->second));
  }
  if (apart && validation_fraction > 0) {
    problems.add(
        "data.validation_fraction",
        fmt::format("kind = \"{}\" requires data.validation_path for validation data", examples->second));
  }
}

bool DataConfig::has(DatasetKind kind) const {
  return std::any_of(
      datasets.begin(), datasets.end(), [&](const DatasetConfig& dataset) { return dataset.kind == kind; });
}

int64_t DataConfig::rows_per_example() const {
  return !has(DatasetKind::pairs) ? 1 : datasets.front().negative_key.empty() ? 2 : 3;
}

}  // namespace lehr::data
