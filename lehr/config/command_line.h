// Command-line parsing with the same field declarations as config files.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lehr/config/config.h"

namespace lehr {

/// The arguments that follow the command's name.
struct Arguments {
  std::vector<std::string> positionals;
  /// --section.key=value, in order.
  Overrides overrides;
  std::vector<std::string> options = {};  ///< The options that were given, as written: "--max-rows", "--no-shuffle".
  bool help = false;                      ///< True if --help or -h was given.
};

/// Whether an argument asks for help: --help or -h.
inline bool is_help(const std::string& arg) {
  return arg == "--help" || arg == "-h";
}

/// Fills `options` from `args`: "--name value", "--name=value", "--flag", "--no-flag" ('-' and '_' are equivalent in
/// names). Dotted names are overrides, which are returned to the caller. Throws one usage error that lists every
/// problem; for an unknown name, or one after a single dash, it suggests the keys of `config`, whose overrides these
/// are, that end with it, or else the closest option. With --help, missing required options are not an error.
Arguments parse_arguments(
    const std::vector<std::string>& args, const ConfigObject& options, const ConfigObject& config = {});

/// The keys of a config of type T, for parse_arguments.
template <class T>
ConfigObject keys_of() {
  return {[](FieldVisitor& v) { T().fields(v); }, {}};
}

/// Returns an option as a user writes it: "--max-rows" for the field max_rows, "--training.seq_len" for a config key.
std::string option_name(std::string_view key);

/// Returns the help text of the options, in command-line syntax, with the defaults that `options` has.
std::string arguments_help(const ConfigObject& options);

}  // namespace lehr
