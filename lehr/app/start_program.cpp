#include "lehr/app/start_program.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "lehr/base/error.h"

namespace lehr::app {

namespace {
std::vector<char*> pointers_to(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (std::string& text : texts) {
    pointers.push_back(text.data());
  }
  pointers.push_back(nullptr);
  return pointers;
}
}  // namespace

pid_t start_program(const ProgramStart& program) {
  // There may be threads, so only system calls are allowed between fork and exec: everything is prepared here.
  std::vector<std::string> variables = program.variables, args{program.path};
  args.insert(args.end(), program.args.begin(), program.args.end());
  const std::vector<char*> environment = pointers_to(variables), arguments = pointers_to(args);
  std::array<int, 2> failure{};  // execve closes it, or its error goes through it
  if (::pipe2(failure.data(), O_CLOEXEC) != 0) {
    fail_runtime("{}: cannot be started: {}", program.path, std::strerror(errno));
  }
  const pid_t parent = ::getpid();
  const pid_t child = ::fork();
  if (child == 0) {
    // A process group of its own: Ctrl-C reaches only the launcher, which forwards it once.
    ::setpgid(0, 0);
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) {
      ::_exit(1);
    }
    ::dup2(program.in, STDIN_FILENO);
    ::dup2(program.out, STDOUT_FILENO);
    ::dup2(program.err, STDERR_FILENO);
    ::signal(SIGPIPE, SIG_DFL);
    ::sigprocmask(SIG_SETMASK, &program.mask, nullptr);
    ::execve(program.path.c_str(), arguments.data(), environment.data());
    const int reason = errno;
    static_cast<void>(!::write(failure[1], &reason, sizeof reason));
    ::_exit(127);
  }
  const int problem = errno;
  ::close(failure[1]);
  int reason = 0;
  const bool failed = child > 0 && ::read(failure[0], &reason, sizeof reason) == static_cast<ssize_t>(sizeof reason);
  ::close(failure[0]);
  if (child < 0) {
    fail_runtime("{}: cannot be started: {}", program.path, std::strerror(problem));
  }
  if (failed) {
    ::waitpid(child, nullptr, 0);
    fail(
        "{}: cannot be executed: {}{}",
        program.path,
        std::strerror(reason),
        reason == ENOEXEC ? "; a script begins with #! and the path of its interpreter" : "");
  }
  ::setpgid(child, child);
  return child;
}

}  // namespace lehr::app
