// Fields and rules of the section [data].
#include "lehr/data/data_config.h"

#include <fmt/format.h>

#include <algorithm>

namespace lehr::data {

void DatasetConfig::fields(FieldVisitor& v) {
  v.required("path", path, "A file, or a folder whose files are read in the order of their names.");
  v.choice(
      "kind",
      kind,
      {{"auto", DatasetKind::by_name},
       {"tokens", DatasetKind::tokens},
       {"text", DatasetKind::text},
       {"jsonl", DatasetKind::jsonl},
       {"classification", DatasetKind::classification},
       {"chat", DatasetKind::chat}},
      "What is in it. auto: by name (.tokens; .jsonl, .ndjson or .json; else text; .gz and .zst are unpacked). "
      "classification: lines \"label text\", or JSON lines with a text and a label. chat: conversations, as JSON lines "
      "or "
      "one JSON list.");
  v.optional("weight", weight, "Share of the training rows, relative to the weights of the others.", positive());
  v.optional("text_key", text_key, "JSON lines: the key that holds the text.");
  v.optional("label_key", label_key, "JSON lines with labels: the key that holds the label.");
  v.optional(
      "split_documents",
      split_documents,
      "Text: what ends a document. \"\": the end of the file; \"line\": every line is a document; \"blank_line\": "
      "blank "
      "lines; anything else is a separator, such as \"<|endoftext|>\".");
  v.optional("messages_key", messages_key, "Chat: the key that holds a conversation's messages.");
  v.optional(
      "prompt_key",
      prompt_key,
      "Chat without messages: the key of a question, as \"instruction\"; answer_key then names the answer's.");
  v.optional(
      "input_key", input_key, "Chat without messages: the key of a text that stands below the question, if any.");
  v.optional("answer_key", answer_key, "Chat without messages: the key of the answer, as \"output\".");
  v.choice(
      "too_long",
      too_long,
      {{"drop", TooLong::drop}, {"truncate", TooLong::truncate}},
      "Chat: what happens to conversations of more than training.seq_len tokens. drop: they are left out, and counted; "
      "truncate: they lose their end.");
}

void DataConfig::fields(FieldVisitor& v) {
  v.optional("seed", seed, "Seed of the order of the data; the job's seed unless given.", at_least(0));
  v.optional("shuffle", shuffle, "Visit the rows of each dataset in random order, another one in every epoch.");
  v.optional("repeat", repeat, "Start over when a dataset is used up; otherwise training ends after one pass.");
  v.choice(
      "packing",
      packing,
      {{"concat", Packing::concat}, {"whole", Packing::whole}},
      "How documents fill rows. concat: one after another, cut at the row's end; whole: only whole documents, as many "
      "as fit, then padding. Conversations are always whole.");
  v.optional(
      "validation_fraction",
      validation_fraction,
      "The last part of each dataset that is held back for validation.",
      from_below(0, 1));
  v.optional(
      "validation_path",
      validation_path,
      "Data for validation, instead of a part of the training data; its kind goes by its name, but what goes with "
      "labels "
      "or conversations is of their kind.");
  v.optional(
      "cache_folder",
      cache_folder,
      "Where text is kept as tokens between runs; the job's dump folder has one unless given.");
  v.optional(
      "num_workers",
      num_workers,
      "Threads that prepare batches; 0 prepares them when they are needed.",
      between(0, 256));
  v.optional("prefetch", prefetch, "Batches that are prepared ahead, at most.", between(1, 1024));
  v.list("datasets", datasets, "What is trained on: one or several, mixed by weight.");
}

void DataConfig::check(Problems& problems) const {
  if (datasets.empty()) {
    problems.add("data.datasets", "at least one [[data.datasets]] with a path is needed");
  }
  if (validation_fraction > 0 && !validation_path.empty()) {
    problems.add(
        "data.validation_fraction", "validation data comes from data.validation_path already; remove one of them");
  }
  const bool classification = is_classification();
  for (size_t i = 0; i < datasets.size(); ++i) {
    const DatasetConfig& dataset = datasets[i];
    const auto key = [i](const char* field) { return fmt::format("data.datasets.{}.{}", i, field); };
    if (dataset.path.empty()) {
      problems.add(key("path"), "is empty; expected a file or a folder");
    }
    if (!repeat && dataset.weight != 1.0) {
      problems.add(key("weight"), "one pass over the data takes every row once, so weights need data.repeat = true");
    }
    if (dataset.kind == DatasetKind::chat) {
      if (dataset.prompt_key.empty() != dataset.answer_key.empty()) {
        problems.add(
            key(dataset.prompt_key.empty() ? "prompt_key" : "answer_key"),
            "prompt_key and answer_key name the two halves of a conversation; set both, or none");
      }
      if (!dataset.input_key.empty() && dataset.prompt_key.empty()) {
        problems.add(key("input_key"), "needs prompt_key: its text stands below the question");
      }
      if (dataset.messages_key.empty()) {
        problems.add(key("messages_key"), "is empty; expected the name of a key, as \"messages\"");
      }
    } else if (!dataset.prompt_key.empty() || !dataset.input_key.empty() || !dataset.answer_key.empty()) {
      problems.add(key("kind"), "prompt_key, input_key and answer_key need kind = \"chat\"");
    }
    if (classification && dataset.kind != DatasetKind::classification) {
      problems.add(key("kind"), "labelled and unlabelled data cannot be mixed");
    }
  }
  if (classification && datasets.size() > 1) {
    problems.add("data.datasets", "classification takes one dataset");
  }
  if (classification && validation_fraction > 0) {
    problems.add("data.validation_fraction", "classification takes its validation data from data.validation_path");
  }
}

bool DataConfig::is_classification() const {
  return std::any_of(datasets.begin(), datasets.end(), [](const DatasetConfig& dataset) {
    return dataset.kind == DatasetKind::classification;
  });
}

bool DataConfig::has_chat() const {
  return std::any_of(
      datasets.begin(), datasets.end(), [](const DatasetConfig& dataset) { return dataset.kind == DatasetKind::chat; });
}

}  // namespace lehr::data
