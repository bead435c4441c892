// Reads programs from CSV.
#include "lehr/pipeline/program_csv.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "lehr/base/error.h"
#include "lehr/base/file.h"
#include "lehr/pipeline/check_program.h"
#include "lehr/pipeline/communication.h"

namespace lehr::pipeline {
namespace {

constexpr std::string_view kOverlap = ")OVERLAP_F_B";
constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kBlanks = " \t\r\"";  // quotes too: no cell contains a comma
  const size_t first = text.find_first_not_of(kBlanks);
  if (first == std::string_view::npos) {
    return {};
  }
  return text.substr(first, text.find_last_not_of(kBlanks) + 1 - first);
}

Actions parse_cell(std::string_view cell) {
  for (const std::string_view name : {"UNSHARD", "RESHARD", "REDUCE_GRAD"}) {
    require(
        !cell.ends_with(name),
        "\"{}\": Lehr unshards, reshards and reduces weights itself; remove UNSHARD, RESHARD and REDUCE_GRAD (PyTorch "
        "calls such a file compute_only)",
        cell);
  }
  if (!cell.starts_with('(') || !cell.ends_with(kOverlap)) {
    return parse_actions(cell);
  }
  std::string members(cell.substr(1, cell.size() - 1 - kOverlap.size()));
  std::replace(members.begin(), members.end(), ';', '|');
  return parse_actions(members);
}

std::vector<Actions> parse_row(std::string_view row, size_t row_number, std::string_view file) {
  std::vector<Actions> list;
  for (size_t column = 1;; ++column) {
    const size_t comma = row.find(',');
    const std::string_view cell = trimmed(row.substr(0, comma));
    if (!cell.empty()) {
      try {
        list.push_back(parse_cell(cell));
      } catch (const Error& error) {
        fail("{}: row {}, column {}: {}", file, row_number, column, error.what());
      }
    }
    if (comma == std::string_view::npos) {
      return list;
    }
    row.remove_prefix(comma + 1);
  }
}

}  // namespace

Program program_from_csv(std::string_view csv, std::string_view file) {
  if (csv.starts_with(kByteOrderMark)) {
    csv.remove_prefix(kByteOrderMark.size());
  }
  std::vector<std::vector<Actions>> ranks;
  while (!csv.empty()) {
    const size_t end = std::min(csv.find('\n'), csv.size());
    ranks.push_back(parse_row(csv.substr(0, end), ranks.size() + 1, file));
    csv.remove_prefix(std::min(end + 1, csv.size()));
  }
  while (!ranks.empty() && ranks.back().empty()) {
    ranks.pop_back();  // blank lines at the end
  }
  require(!ranks.empty(), "{}: expected one row of actions per rank, found none", file);
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    require(!ranks[rank].empty(), "{}: row {}: expected the actions of rank {}, found none", file, rank + 1, rank);
  }
  try {
    Program program = program_from_ranks(std::move(ranks));
    if (!program.has_communication()) {
      return add_communication(program);
    }
    check_program(program);
    return program;
  } catch (const Error& error) {
    fail("{}: {} (rank 0 is row 1; entries are counted from 0, without empty cells)", file, error.what());
  }
}

Program read_program_csv(const std::filesystem::path& path) {
  return program_from_csv(read_file(path), path.string());
}

}  // namespace lehr::pipeline
