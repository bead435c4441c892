// Limits of a rendering: a template of a downloaded folder may loop and nest.
#pragma once

#include <cstddef>
#include <utility>

#include "lehr/data/jinja/value.h"

namespace lehr::data::jinja {

/// The work that a rendering may still do, in bytes of the values that it handles, and its nesting depth. One per
/// rendering. A conversation takes a few hundred times its own size.
class Budget {
 public:
  /// `input_bytes`: of all variables.
  explicit Budget(size_t input_bytes) : left_(kBytes + kBytesPerInput * input_bytes) {}

  void spend(size_t bytes) {
    if (bytes > left_) {
      refuse("the template does too much work: it loops too often, or makes too large values");
    }
    left_ -= bytes;
  }
  /// Spends for a value that was just made, and returns it.
  Value spend_on(Value made) {
    spend(made.own_bytes());
    return made;
  }
  /// Spends for a value that a function reads, usually only in part.
  void spend_on_input(const Value& input) { spend(input.own_bytes() / 4 + input.tree_bytes() / 64); }

  /// A level of nested expressions, blocks and macros; each uses stack space.
  class Level {
   public:
    explicit Level(Budget& budget) : depth_(budget.depth_) {
      if (++depth_ > kMaxDepth) {
        --depth_;
        refuse("expressions, blocks and macros are nested more than {} deep", kMaxDepth);
      }
    }
    ~Level() { --depth_; }
    Level(const Level&) = delete;
    Level& operator=(const Level&) = delete;

   private:
    int& depth_;
  };

  int macros = 0;  ///< Nesting depth of macro calls.

  static constexpr size_t kEvaluation = 32;   ///< Of an expression or a statement.
  static constexpr size_t kIteration = 1024;  ///< Of a loop, which makes a scope and the variable `loop`.

 private:
  static constexpr size_t kBytes = size_t{1} << 25, kBytesPerInput = 1024;
  static constexpr int kMaxDepth = 2000;

  size_t left_;
  int depth_ = 0;
};

}  // namespace lehr::data::jinja
