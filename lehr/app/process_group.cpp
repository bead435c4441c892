#include "lehr/app/process_group.h"

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

namespace lehr::app {

namespace {
namespace fs = std::filesystem;

// A line of /proc/PID/stat is "PID (name) state parent group ...", and the name may have any characters.
bool runs_in(const fs::path& process, pid_t group) {
  std::string line;
  std::getline(std::ifstream(process / "stat"), line);
  const size_t name_end = line.rfind(')');
  if (name_end == std::string::npos) {
    return false;
  }
  std::istringstream fields(line.substr(name_end + 1));
  char state = 'X';
  int64_t parent = 0, own_group = 0;
  fields >> state >> parent >> own_group;
  return own_group == group && state != 'Z' && state != 'X';
}

bool ignores(const fs::path& process, int signal) {
  std::ifstream status(process / "status");
  for (std::string word; status >> word;) {
    if (word == "SigIgn:") {
      uint64_t ignored = 0;
      status >> std::hex >> ignored;
      return ((ignored >> (signal - 1)) & 1) != 0;
    }
  }
  return true;  // it has ended meanwhile
}
}  // namespace

bool may_still_save(pid_t group, int signal) {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator("/proc", error)) {
    const std::string name = entry.path().filename().string();
    if (name.find_first_not_of("0123456789") == std::string::npos && runs_in(entry.path(), group) &&
        !ignores(entry.path(), signal)) {
      return true;
    }
  }
  return false;
}

}  // namespace lehr::app
