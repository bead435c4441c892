// Pipeline programs as CSV files, in the format of PyTorch and torchtitan.
#pragma once

#include <filesystem>
#include <string_view>

#include "lehr/pipeline/program.h"

namespace lehr::pipeline {

/// Reads a program from a CSV text with one line per rank and one entry per cell: "0F0", "1I0", "(0F3;3B1)OVERLAP_F_B"
/// (or "0F3|3B1"). Cells may be empty. A stage belongs to the rank that computes it. A file without sends and receives
/// gets them (add_communication); a file that has them is kept as it is. The result is checked (check_program).
///
/// `file` names the text in messages. Throws usage errors that name the file, and row and column (from 1) of a cell
/// that cannot be parsed, or rank, entry and action of an invalid program.
Program program_from_csv(std::string_view csv, std::string_view file);

/// Like program_from_csv, for a file. Also throws a usage error if the file cannot be read.
Program read_program_csv(const std::filesystem::path& path);

}  // namespace lehr::pipeline
