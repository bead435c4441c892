// Queries of a program, and its text form.
#include "lehr/pipeline/program.h"

#include <algorithm>
#include <utility>

#include "lehr/base/error.h"

namespace lehr::pipeline {
namespace {

template <class Predicate>
bool any_action(const Program& program, Predicate predicate) {
  for (const auto& list : program.ranks) {
    for (const Actions& entry : list) {
      if (std::any_of(entry.begin(), entry.end(), predicate)) {
        return true;
      }
    }
  }
  return false;
}

bool is_blank(char c) {
  return c == ' ' || c == '\t' || c == '\r';
}

std::vector<Actions> parse_line(std::string_view line, size_t rank) {
  std::vector<Actions> list;
  size_t at = 0;
  while (true) {
    while (at < line.size() && is_blank(line[at])) {
      ++at;
    }
    if (at == line.size()) {
      return list;
    }
    size_t end = at;
    while (end < line.size() && !is_blank(line[end])) {
      ++end;
    }
    try {
      list.push_back(parse_actions(line.substr(at, end - at)));
    } catch (const Error& error) {
      fail("pipeline program, rank {}, entry {}: {}", rank, list.size(), error.what());
    }
    at = end;
  }
}

}  // namespace

std::vector<int64_t> Program::stages_of(int64_t rank) const {
  std::vector<int64_t> stages;
  for (int64_t stage = 0; stage < num_stages(); ++stage) {
    if (rank_of_stage[static_cast<size_t>(stage)] == rank) {
      stages.push_back(stage);
    }
  }
  return stages;
}

bool Program::has_backward() const {
  return any_action(*this, [](const Action& action) {
    return action.kind != ActionKind::forward && action.kind != ActionKind::send_forward &&
           action.kind != ActionKind::receive_forward;
  });
}

bool Program::has_communication() const {
  return any_action(*this, [](const Action& action) { return !action.is_compute(); });
}

std::string to_text(const Program& program) {
  std::string text;
  for (const auto& list : program.ranks) {
    for (size_t i = 0; i < list.size(); ++i) {
      text += (i == 0 ? "" : " ") + to_string(list[i]);
    }
    text += '\n';
  }
  return text;
}

Program parse_program(std::string_view text) {
  std::vector<std::vector<Actions>> ranks;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    ranks.push_back(parse_line(text.substr(0, end), ranks.size()));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return program_from_ranks(std::move(ranks));
}

Program program_from_ranks(std::vector<std::vector<Actions>> ranks) {
  Program program;
  program.ranks = std::move(ranks);
  // A stage or micro-batch number as large as the number of actions must be a typing error.
  int64_t num_actions = 0;
  for (const auto& list : program.ranks) {
    for (const Actions& entry : list) {
      num_actions += static_cast<int64_t>(entry.size());
    }
  }
  for (size_t rank = 0; rank < program.ranks.size(); ++rank) {
    for (size_t i = 0; i < program.ranks[rank].size(); ++i) {
      for (const Action& action : program.ranks[rank][i]) {
        if (action.stage >= num_actions || action.microbatch >= num_actions) {
          fail(
              "pipeline program, rank {}, entry {}: {} names a stage or micro-batch far beyond the {} actions in total",
              rank,
              i,
              to_string(action),
              num_actions);
        }
        program.num_microbatches = std::max(program.num_microbatches, action.microbatch + 1);
        const auto stage = static_cast<size_t>(action.stage);
        if (stage >= program.rank_of_stage.size()) {
          program.rank_of_stage.resize(stage + 1, -1);
        }
        int64_t& host = program.rank_of_stage[stage];
        if (action.kind == ActionKind::forward) {
          if (host >= 0 && host != static_cast<int64_t>(rank)) {
            fail(
                "pipeline program, rank {}, entry {}: {} computes stage {}, which rank {} computes as well; a stage "
                "belongs to one rank",
                rank,
                i,
                to_string(action),
                action.stage,
                host);
          }
          host = static_cast<int64_t>(rank);
        }
      }
    }
  }
  for (size_t stage = 0; stage < program.rank_of_stage.size(); ++stage) {
    require(
        program.rank_of_stage[stage] >= 0,
        "pipeline program: no rank computes a forward of stage {}, though the highest stage number implies {} stages",
        stage,
        program.rank_of_stage.size());
  }
  return program;
}

}  // namespace lehr::pipeline
