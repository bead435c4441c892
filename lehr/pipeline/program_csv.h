// Programs in files: the CSV form that PyTorch and torchtitan read and write.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "lehr/pipeline/program.h"

namespace lehr::pipeline {

/// A program from a CSV text with one row a rank and one entry a cell: "0F0", "1I0", "(0F3;3B1)OVERLAP_F_B" (or
/// "0F3|3B1"). Cells may be empty. A stage is on the rank that computes it. Computations alone get their communication
/// (add_communication); a file that has communication is taken as it is. The result was checked (check_program).
///
/// `file` stands for the text in messages. Throws usage errors that name the file, with row and column (from 1) for
/// cells that cannot be read, with rank, entry and action for programs that are not right.
Program program_from_csv(std::string_view csv, std::string_view file);

/// The same of a file. Throws as well when it cannot be read.
Program read_program_csv(const std::filesystem::path& path);

/// `program` with one row a rank, as PyTorch writes it: with communication if it has some (PyTorch's "compute_comms"),
/// without if not ("compute_only").
std::string program_to_csv(const Program& program);

}  // namespace lehr::pipeline
