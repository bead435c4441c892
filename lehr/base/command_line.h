// The program's command lines, by the same fields as config files.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "lehr/base/config.h"

namespace lehr {

/// What stands on a command line behind the command's name.
struct Arguments {
  std::vector<std::string> positionals;
  /// --section.key=value, in order.
  std::vector<std::pair<std::string, std::string>> overrides;
  bool help = false;  ///< --help or -h was there.
};

/// Fills `options` from `args`: "--name value", "--name=value", "--flag", "--no-flag" ('-' and '_' mean the same in
/// names). Dotted names are overrides and are left to the caller. Throws one usage error for everything that is wrong;
/// an unknown name comes with the one that was probably meant. Missing required options are no error under --help.
Arguments parse_arguments(const std::vector<std::string>& args, const ConfigObject& options);

/// The options as help text, written as on a command line.
std::string arguments_help(const ConfigObject& options);

}  // namespace lehr
