// Parser from a template's text to its syntax tree.
#pragma once

#include <string_view>

#include "lehr/data/jinja/nodes.h"

namespace lehr::data::jinja {

/// A parsed template.
struct Parsed {
  Body body;
  bool marks_generation = false;  ///< The template has a {% generation %} block.
};

/// Parses a template. Throws Problem, with the line, for syntax errors and unsupported constructs.
Parsed parse(std::string_view source);

}  // namespace lehr::data::jinja
