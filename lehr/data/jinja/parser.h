// A template's text to its tree.
#pragma once

#include <string_view>

#include "lehr/data/jinja/nodes.h"

namespace lehr::data::jinja {

struct Parsed {
  Body body;
  bool marks_generation = false;  ///< There is a {% generation %} block.
};

/// Throws Problem, with the line, for what is wrong and for what this interpreter does not have.
Parsed parse(std::string_view source);

}  // namespace lehr::data::jinja
