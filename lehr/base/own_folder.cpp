#include "lehr/base/own_folder.h"

#include <dlfcn.h>

#include "lehr/base/error.h"

namespace lehr {

std::filesystem::path own_folder() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<const void*>(&own_folder), &info) != 0 && info.dli_fname != nullptr) {
    // For a program, dli_fname is the name by which it was called, not its path.
    if (const std::filesystem::path file = info.dli_fname; file.extension() == ".so") {
      return file.parent_path();
    }
  }
  return std::filesystem::read_symlink("/proc/self/exe").parent_path();
}

std::filesystem::path own_file(const std::string& name) {
  const auto folder = own_folder();
  for (const auto& place : {folder, folder.parent_path()}) {
    if (std::filesystem::exists(place / name)) {
      return place / name;
    }
  }
  return {};
}

void* address_in(void* module, const std::string& file, const char* name) {
  void* const address = dlsym(module, name);
  require(address != nullptr, "{}: has no function {}; build it together with the program", file, name);
  return address;
}

}  // namespace lehr
