#include "lehr/config/command_line.h"

#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <set>

#include "lehr/base/error.h"
#include "lehr/base/value_of.h"
#include "lehr/config/help_text.h"
#include "lehr/config/suggest.h"
#include "lehr/config/toml.h"

namespace lehr {

std::string option_name(std::string_view key) {
  std::string name(key);
  if (name.find('.') == std::string::npos) {
    std::replace(name.begin(), name.end(), '_', '-');
  }
  return "--" + name;
}

namespace {
std::string to_key(std::string name) {
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
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

  bool has(const std::string& key) const { return std::find(names.begin(), names.end(), key) != names.end(); }

  std::vector<std::string> names;
  std::set<std::string> flags;
  std::set<std::string> texts;
  std::set<std::string> lists;
};

// The dotted keys of a config.
class KeyList : public FieldVisitor {
 public:
  void visit(const Field& field, FieldRef) override { keys.push_back(path_ + std::string(field.name)); }
  void begin_group(std::string_view name, std::string_view) override { enter(std::string(name)); }
  void end_group() override { leave(); }
  size_t begin_list(std::string_view name, std::string_view, size_t) override {
    enter(std::string(name));
    return 0;
  }
  void begin_item(size_t index) override { enter(std::to_string(index)); }
  void end_item() override { leave(); }
  void end_list() override { leave(); }
  bool wants_list_prototype() const override { return true; }

  std::vector<std::string> keys;

 private:
  void enter(const std::string& name) { path_ += name + "."; }
  void leave() { path_.erase(path_.rfind('.', path_.size() - 2) + 1); }

  std::string path_;
};

// "  (default 128)" of an option that has a value unless it is given; a flag is off, or its help names --no-FLAG.
std::string told_default(const Node* value) {
  const bool none = value == nullptr || value->is_bool() || (value->is_list() && value->size() == 0) ||
                    (value->is_string() && value->as_string().empty());
  return none ? "" : fmt::format("  (default {})", value->is_string() ? value->as_string() : toml_value(*value));
}

class HelpList : public OptionList {
 public:
  explicit HelpList(Node defaults) : defaults_(std::move(defaults)) {}
  void visit(const Field& field, FieldRef value) override {
    OptionList::visit(field, value);
    std::string word = flags.count(std::string(field.name)) != 0 ? "" : " VALUE";
    if (!field.rule.one_of.empty()) {
      word = fmt::format(" {}", fmt::join(field.rule.one_of, "|"));
    }
    text += fmt::format(
        "  {}{}{}\n",
        option_name(field.name),
        word,
        field.required ? "  (required)" : told_default(defaults_.find(field.name)));
    text += wrapped_help(field.help);
  }
  std::string text;

 private:
  Node defaults_;
};

// An argument that begins with two dashes: --KEY, --KEY=VALUE or --no-KEY.
struct WrittenOption {
  std::string name;  // as written, without dashes and value
  std::string key;
  std::optional<std::string> value;
  bool negated = false;
  bool dotted = false;  // the name of a config key, such as training.steps
};

WrittenOption split_option(const std::string& arg, const OptionList& known) {
  WrittenOption option;
  const size_t equals = arg.find('=');
  option.name = arg.substr(2, equals == std::string::npos ? equals : equals - 2);
  if (equals != std::string::npos) {
    option.value = arg.substr(equals + 1);
  }
  option.key = to_key(option.name);
  option.dotted = option.name.find('.') != std::string::npos;
  if (!known.has(option.key) && option.key.starts_with("no_") && known.flags.count(option.key.substr(3)) != 0) {
    option.negated = true;
    option.key = option.key.substr(3);
  }
  return option;
}

// "; did you mean --training.steps?", for an option that is not known or was written with one dash.
std::string meant_option(const std::string& key, const OptionList& known, const ConfigObject& config) {
  std::vector<std::string> meant;
  if (known.has(key)) {
    meant.push_back(option_name(key));
  } else if (config.fields) {
    KeyList list;
    config.fields(list);
    std::copy_if(list.keys.begin(), list.keys.end(), std::back_inserter(meant), [&](const std::string& one) {
      return one == key || one.ends_with("." + key);
    });
    std::transform(meant.begin(), meant.end(), meant.begin(), option_name);
  }
  if (const auto nearest = suggest(key, known.names); meant.empty() && nearest) {
    meant.push_back(option_name(*nearest));
  }
  return meant.empty() ? "; --help lists the options" : fmt::format("; did you mean {}?", fmt::join(meant, " or "));
}

// Returns the value of a known option; `before` is its value so far, or null.
Node value_of(const WrittenOption& option, const OptionList& known, const Node* before) {
  Node node;
  require(!option.negated || !option.value, "command line: --{}: takes no value; leave the value out", option.name);
  if (!option.value) {
    node = Node(!option.negated);
  } else if (known.texts.count(option.key) != 0) {
    node = Node(*option.value);
  } else {
    try {
      node = parse_toml("x = " + *option.value, "command line").at("x");
    } catch (const Error&) {
      node = Node(*option.value);
    }
  }
  if (known.lists.count(option.key) != 0 && !node.is_list()) {
    // An option that may be repeated.
    Node list = before != nullptr ? *before : Node::make_list();
    list.push_back(node.is_string() ? node : Node(lehr::value_of(option.value, "the value of an option of a list")));
    node = list;
  }
  node.set_origin({.file = "command line"});
  return node;
}

bool is_utf8(const std::string& text) {
  try {
    return !nlohmann::json(text).dump().empty();
  } catch (const nlohmann::json::exception&) {
    return false;
  }
}
}  // namespace

Arguments parse_arguments(
    const std::vector<std::string>& args, const ConfigObject& options, const ConfigObject& config) {
  OptionList known;
  options.fields(known);
  Arguments result;
  Node values = Node::make_table();
  values.set_origin({.file = "command line"});
  std::vector<std::string> problems;
  for (size_t i = 0; i < args.size(); ++i) {
    const std::string& arg = args[i];
    if (is_help(arg)) {
      result.help = true;
      continue;
    }
    if (arg.size() > 1 && arg[0] == '-' && arg[1] != '-') {
      const std::string key = to_key(arg.substr(1, arg.find('=') - 1));
      problems.push_back(
          fmt::format("command line: {}: options begin with two dashes{}", arg, meant_option(key, known, config)));
      continue;
    }
    if (!arg.starts_with("--") || arg == "--") {
      result.positionals.push_back(arg);
      continue;
    }
    WrittenOption option = split_option(arg, known);
    if (!option.dotted && !known.has(option.key)) {
      problems.push_back(
          fmt::format("command line: --{}: unknown option{}", option.name, meant_option(option.key, known, config)));
      continue;
    }
    const bool flag = !option.dotted && known.flags.count(option.key) != 0;
    if (!option.value && !flag) {
      if (i + 1 == args.size()) {
        problems.push_back(fmt::format("command line: --{}: expected a value", option.name));
        continue;
      }
      option.value = args[++i];
    }
    if (option.dotted && !is_utf8(*option.value)) {
      problems.push_back(fmt::format(
          "command line: --{}: the value is not valid UTF-8, so the run's config.toml could not hold it; rename the file "
          "or folder",
          option.name));
    } else if (option.dotted) {
      result.overrides.emplace_back(option.name, *option.value);
    } else {
      values.set(option.key, value_of(option, known, values.find(option.key)));
      result.options.push_back("--" + option.name);
    }
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
  HelpList list(object_to_node(options));
  options.fields(list);
  return list.text;
}

}  // namespace lehr
