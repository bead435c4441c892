// Jinja templates, as far as chat templates go: parsed once, rendered from many threads.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lehr/data/jinja/value.h"

namespace lehr::data::jinja {

/// A parsed template. It has the statements set, if, for (with break and continue), macro and generation; the whole
/// grammar of expressions; the filters, tests and methods that chat templates use. trim_blocks and lstrip_blocks are
/// on, as transformers sets them; there is no escaping of HTML.
class Template {
 public:
  /// `name` is the file's, for messages. A wrong template, and a block, filter or test that is not supported, is a
  /// usage error that names the line and what it is.
  Template(const std::string& source, std::string name);
  ~Template();
  Template(Template&&) noexcept;

  struct Rendering {
    std::string text;
    /// Bytes [begin, end) of `text` that {% generation %} blocks wrote.
    std::vector<std::pair<size_t, size_t>> generated;
  };
  /// Throws a usage error that names the line, for what goes wrong on the way and for raise_exception().
  Rendering render(const Dict& variables) const;

  /// Whether there is a {% generation %} block.
  bool marks_generation() const { return marks_generation_; }
  const std::string& name() const { return name_; }

 private:
  struct Tree;
  std::string name_;
  std::unique_ptr<const Tree> tree_;
  bool marks_generation_ = false;
};

}  // namespace lehr::data::jinja
