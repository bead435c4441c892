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

/// As function_of, without a type.
void* address_in(void* module, const std::string& file, const char* name);

/// Returns the function `name` of a module that dlopen() has opened. Throws a usage error that names `file` if it has
/// none.
template <class Function>
Function* function_of(void* module, const std::string& file, const char* name) {
  return reinterpret_cast<Function*>(address_in(module, file, name));
}

}  // namespace lehr
