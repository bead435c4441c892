// The folder of the file that contains Lehr, which also contains its optional modules.
#pragma once

#include <filesystem>

namespace lehr {

/// Returns the folder of the shared library that contains this code (the Python module), else of the program.
std::filesystem::path own_folder();

}  // namespace lehr
