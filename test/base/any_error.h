// The message of an error of any kind, for tests.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "lehr/base/error.h"

namespace lehr::any_error {

/// The message of the lehr::Error that `action` throws; a failure if it throws none.
template <class Action>
std::string error_of(const Action& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  ADD_FAILURE() << "expected an error";
  return "";
}

}  // namespace lehr::any_error
