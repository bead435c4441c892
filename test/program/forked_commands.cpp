// forked_commands MEGABYTES SECONDS: runs the program's commands, one per line of standard input with arguments between
// tabs, each in a process forked from this one, which has loaded the libraries. A command may map MEGABYTES more than
// this process and take SECONDS. Prints a line of JSON per command: its exit code (minus the signal that ended it; -14,
// SIGALRM, after SECONDS) and its errors.
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <iostream>
#include <string>
#include <vector>

#include "lehr/app/main.h"
#include "lehr/app/models.h"
#include "lehr/base/error.h"
#include "lehr/config/json.h"

namespace {
std::vector<std::string> split(const std::string& line) {
  std::vector<std::string> parts{"lehr"};
  for (size_t begin = 0; begin <= line.size();) {
    const size_t end = std::min(line.find('\t', begin), line.size());
    parts.push_back(line.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

// The bytes that this process has mapped.
uint64_t mapped_bytes() {
  std::ifstream file("/proc/self/statm");
  uint64_t pages = 0;
  file >> pages;
  return pages * static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
}

[[noreturn]] void run(std::vector<std::string> arguments, int errors, uint64_t megabytes, unsigned seconds) {
  const uint64_t bytes = mapped_bytes() + megabytes * 1000 * 1000;
  const rlimit limit{bytes, bytes}, no_core{0, 0};
  ::setrlimit(RLIMIT_AS, &limit);
  ::setrlimit(RLIMIT_CORE, &no_core);
  ::alarm(seconds);
  ::dup2(errors, STDERR_FILENO);
  const int nothing = ::open("/dev/null", O_RDWR);
  ::dup2(nothing, STDIN_FILENO);
  ::dup2(nothing, STDOUT_FILENO);
  std::vector<char*> argv;
  for (std::string& argument : arguments) {
    argv.push_back(argument.data());
  }
  std::exit(lehr::app::main(static_cast<int>(argv.size()), argv.data(), lehr::app::models()));
}

std::string read_all(int file) {
  std::string text;
  char buffer[4096];
  for (ssize_t got = 0; (got = ::read(file, buffer, sizeof buffer)) > 0;) {
    text.append(buffer, static_cast<size_t>(got));
  }
  return text;
}
}  // namespace

int main(int argc, char** argv) {
  lehr::require(argc == 3, "usage: forked_commands MEGABYTES SECONDS");
  for (std::string line; std::getline(std::cin, line);) {
    int ends[2];
    if (::pipe(ends) != 0) {
      return 1;
    }
    const pid_t child = ::fork();
    if (child == 0) {
      ::close(ends[0]);
      run(split(line), ends[1], std::stoull(argv[1]), static_cast<unsigned>(std::stoul(argv[2])));
    }
    ::close(ends[1]);
    lehr::Node result = lehr::Node::make_table();
    result.set("errors", lehr::Node(read_all(ends[0])));
    ::close(ends[0]);
    int status = 0;
    ::waitpid(child, &status, 0);
    const int code = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
    result.set("code", lehr::Node(static_cast<int64_t>(code)));
    std::cout << lehr::to_json(result, /*indented=*/false) << std::endl;
  }
}
