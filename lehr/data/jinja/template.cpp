#include "lehr/data/jinja/template.h"

#include "lehr/base/error.h"
#include "lehr/data/jinja/parser.h"

namespace lehr::data::jinja {

struct Template::Tree {
  Body body;
};

namespace {
[[noreturn]] void tell(const std::string& name, const Problem& problem) {
  const std::string line = problem.line() > 0 ? fmt::format(":{}", problem.line()) : "";
  fail("{}{}: {}", name, line, problem.what());
}
}  // namespace

Template::Template(const std::string& source, std::string name) : name_(std::move(name)) {
  constexpr size_t kLongest = 1 << 20;
  require(
      source.size() <= kLongest,
      "{}: the template has {} bytes, at most {} are allowed",
      name_,
      source.size(),
      kLongest);
  try {
    Parsed parsed = parse(source);
    marks_generation_ = parsed.marks_generation;
    tree_ = std::make_unique<const Tree>(Tree{std::move(parsed.body)});
  } catch (const Problem& problem) {
    tell(name_, problem);
  }
}

Template::~Template() = default;
Template::Template(Template&&) noexcept = default;

Template::Rendering Template::render(const Dict& variables) const {
  Rendering rendering;
  size_t input_bytes = 0;
  for (const auto& [name, value] : variables) {
    input_bytes += value.tree_bytes();
  }
  Budget budget(input_bytes);
  const auto globals = std::make_shared<Scope>(Scope{nullptr, global_functions()});
  const auto given = std::make_shared<Scope>(Scope{globals, variables});
  Frame frame{std::make_shared<Scope>(Scope{given, {}}), rendering.text, &rendering.generated, budget};
  try {
    run(tree_->body, frame);
  } catch (const Problem& problem) {
    tell(name_, problem);
  }
  return rendering;
}

}  // namespace lehr::data::jinja
