// The heads that read a model's final hidden states.
#pragma once

namespace lehr::descriptor {

/// The head that reads a model's final hidden states.
enum class Head { causal_lm, classification, token_classification, embedding };

/// Returns whether the head scores labels, of sequences or of tokens.
constexpr bool is_classifier(Head head) {
  return head == Head::classification || head == Head::token_classification;
}

/// Returns the head's name, such as "causal_lm": that of the task that trains it (training.task).
constexpr const char* name_of(Head head) {
  switch (head) {
    case Head::causal_lm:
      return "causal_lm";
    case Head::classification:
      return "classification";
    case Head::token_classification:
      return "token_classification";
    case Head::embedding:
      return "embedding";
  }
  return "";
}

/// Returns a phrase for a model with this head, such as "a classifier".
constexpr const char* model_with(Head head) {
  switch (head) {
    case Head::causal_lm:
      return "a language model";
    case Head::classification:
      return "a classifier";
    case Head::token_classification:
      return "a classifier of tokens";
    case Head::embedding:
      return "an embedding model";
  }
  return "";
}

}  // namespace lehr::descriptor
