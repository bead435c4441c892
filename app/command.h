// What a command of the program is.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace lehr::app {

/// One command of `lehr`. `run` gets what stands behind its name and returns the exit code; it may throw lehr::Error.
struct Command {
  std::string name;
  std::string summary;
  std::function<int(const std::vector<std::string>& args)> run;
};

/// All of them, in the order of the program's help.
const std::vector<Command>& commands();

int train(const std::vector<std::string>& args);
/// `lehr train` on so many ranks that are threads of this process.
int train_on_threads(const std::vector<std::string>& args, int64_t ranks);
int eval(const std::vector<std::string>& args);
int score(const std::vector<std::string>& args);
int generate(const std::vector<std::string>& args);
int merge(const std::vector<std::string>& args);
int plan(const std::vector<std::string>& args);
int verify(const std::vector<std::string>& args);
int convert(const std::vector<std::string>& args);
int prune(const std::vector<std::string>& args);
int inspect(const std::vector<std::string>& args);
int tokenize(const std::vector<std::string>& args);
int launch(const std::vector<std::string>& args);

}  // namespace lehr::app
