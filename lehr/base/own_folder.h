// The folder of the file that contains Lehr, which also contains its optional modules.
#pragma once

#include <filesystem>
#include <string>

namespace lehr {

/// Returns the folder of the shared library that contains this code (the Python module), else of the program.
std::filesystem::path own_folder();

/// Returns the path of a file that belongs to an optional module, such as "liblehr_nccl.so": in own_folder(), or in the
/// folder above it (test programs, the Python package). Empty if there is none.
std::filesystem::path own_file(const std::string& name);

}  // namespace lehr
