#include "lehr/base/command_line.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "lehr/base/error.h"
#include "lehr/base/suggest.h"
#include "lehr/base/toml.h"

namespace lehr {

namespace {
std::string to_key(std::string name) {
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

std::string to_option(std::string_view key) {
  std::string name(key);
  std::replace(name.begin(), name.end(), '_', '-');
  return "--" + name;
}

// The properties of each option that parsing needs before it reads values.
class OptionList : public FieldVisitor {
 public:
  void visit(const Field& field, FieldRef value) override {
    const std::string name(field.name);
    names.push_back(name);
    if (std::holds_alternative<bool*>(value) || std::holds_alternative<std::optional<bool>*>(value)) {
      flags.insert(name);
    }
    if (std::holds_alternative<std::string*>(value) || std::holds_alternative<std::optional<std::string>*>(value)) {
      texts.insert(name);
    }
    if (std::holds_alternative<std::vector<std::string>*>(value)) {
      lists.insert(name);
    }
  }
  void begin_group(std::string_view, std::string_view) override {}
  void end_group() override {}
  size_t begin_list(std::string_view, std::string_view, size_t) override { return 0; }
  void begin_item(size_t) override {}
  void end_item() override {}
  void end_list() override {}

  std::vector<std::string> names;
  std::set<std::string> flags;
  std::set<std::string> texts;
  std::set<std::string> lists;
};

class HelpList : public OptionList {
 public:
  void visit(const Field& field, FieldRef value) override {
    OptionList::visit(field, value);
    std::string word = flags.count(std::string(field.name)) != 0 ? "" : " VALUE";
    if (!field.rule.one_of.empty()) {
      word = fmt::format(" {}", fmt::join(field.rule.one_of, "|"));
    }
    text += fmt::format(
        "  {}{}{}\n      {}\n", to_option(field.name), word, field.required ? "  (required)" : "", field.help);
  }
  std::string text;
};
}  // namespace

Arguments parse_arguments(const std::vector<std::string>& args, const ConfigObject& options) {
  OptionList known;
  options.fields(known);
  Arguments result;
  Node values = Node::make_table();
  values.set_origin({.file = "command line"});
  std::vector<std::string> problems;
  for (size_t i = 0; i < args.size(); ++i) {
    const std::string& arg = args[i];
    if (arg == "--help" || arg == "-h") {
      result.help = true;
      continue;
    }
    if (!arg.starts_with("--") || arg == "--") {
      result.positionals.push_back(arg);
      continue;
    }
    const size_t equals = arg.find('=');
    const std::string written = arg.substr(2, equals == std::string::npos ? equals : equals - 2);
    std::optional<std::string> value;
    if (equals != std::string::npos) {
      value = arg.substr(equals + 1);
    }
    std::string key = to_key(written);
    auto is_known = [&](const std::string& name) {
      return std::find(known.names.begin(), known.names.end(), name) != known.names.end();
    };
    bool negated = false;
    if (!is_known(key) && key.starts_with("no_") && known.flags.count(key.substr(3)) != 0) {
      negated = true;
      key = key.substr(3);
    }
    const bool dotted = written.find('.') != std::string::npos;
    if (!dotted && !is_known(key)) {
      const auto nearest = suggest(key, known.names);
      problems.push_back(fmt::format(
          "command line: --{}: unknown option{}",
          written,
          nearest ? fmt::format("; did you mean {}?", to_option(*nearest)) : "; --help lists the options"));
      continue;
    }
    const bool flag = !dotted && known.flags.count(key) != 0;
    if (!value && !flag) {
      if (i + 1 == args.size()) {
        problems.push_back(fmt::format("command line: --{}: expected a value", written));
        continue;
      }
      value = args[++i];
    }
    if (dotted) {
      result.overrides.emplace_back(written, *value);
      continue;
    }
    Node node;
    if (flag && !value) {
      node = Node(!negated);
    } else if (known.texts.count(key) != 0) {
      node = Node(*value);
    } else {
      try {
        node = parse_toml("x = " + *value, "command line").at("x");
      } catch (const Error&) {
        node = Node(*value);
      }
    }
    if (known.lists.count(key) != 0 && !node.is_list()) {
      // An option that may be repeated.
      Node list = values.find(key) != nullptr ? *values.find(key) : Node::make_list();
      list.push_back(node.is_string() ? node : Node(*value));
      node = list;
    }
    node.set_origin({.file = "command line"});
    values.set(key, node);
  }
  if (!problems.empty()) {
    fail("{}", fmt::join(problems, "\n"));
  }
  if (!result.help) {
    load_object(options, values, "command line");
  }
  return result;
}

std::string arguments_help(const ConfigObject& options) {
  HelpList list;
  options.fields(list);
  return list.text;
}

}  // namespace lehr
