// Jinja templates, in the subset that chat templates use: parsed once, rendered from many threads.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lehr/data/jinja/value.h"

namespace lehr::data::jinja {

/// A parsed template. Supports the statements set, if, for (with break and continue), macro and generation; the whole
/// grammar of expressions; the filters, tests and methods that chat templates use. trim_blocks and lstrip_blocks are
/// on, as in transformers; HTML is not escaped.
class Template {
 public:
  /// `name` is the file's name, for messages. Throws a usage error that names the line for syntax errors and for
  /// unsupported blocks, filters and tests.
  Template(const std::string& source, std::string name);
  ~Template();
  Template(Template&&) noexcept;

  struct Rendering {
    std::string text;
    /// Byte ranges [begin, end) of `text` that {% generation %} blocks wrote.
    std::vector<std::pair<size_t, size_t>> generated;
  };
  /// Throws a usage error that names the line, for errors during rendering and for raise_exception().
  Rendering render(const Dict& variables) const;

  /// Returns whether the template has a {% generation %} block.
  bool marks_generation() const { return marks_generation_; }
  const std::string& name() const { return name_; }

 private:
  struct Tree;
  std::string name_;
  std::unique_ptr<const Tree> tree_;
  bool marks_generation_ = false;
};

}  // namespace lehr::data::jinja
