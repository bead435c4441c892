// The kinds of training tasks, and how they differ.
#pragma once

#include "lehr/descriptor/head.h"

namespace lehr::train {

/// Values of training.task.
enum class TaskKind { causal_lm, classification, token_classification, sft, embedding };

/// Returns the head of the models that the task trains.
constexpr descriptor::Head head_of(TaskKind task) {
  switch (task) {
    case TaskKind::causal_lm:
    case TaskKind::sft:
      return descriptor::Head::causal_lm;
    case TaskKind::classification:
      return descriptor::Head::classification;
    case TaskKind::token_classification:
      return descriptor::Head::token_classification;
    case TaskKind::embedding:
      return descriptor::Head::embedding;
  }
  return descriptor::Head::causal_lm;
}

/// Returns the value of training.task, such as "causal_lm".
constexpr const char* name_of(TaskKind task) {
  return task == TaskKind::sft ? "sft" : descriptor::name_of(head_of(task));
}

/// Returns whether the data are whole texts, each padded in a row of its own, not a stream of tokens: every task but
/// language modelling.
constexpr bool reads_whole_texts(TaskKind task) {
  return head_of(task) != descriptor::Head::causal_lm;
}

/// Returns whether the head reads one position of each text, rather than all of them.
constexpr bool reads_one_position(TaskKind task) {
  return task == TaskKind::classification || task == TaskKind::embedding;
}

}  // namespace lehr::train
