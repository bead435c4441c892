// The message of an error, for tests of wrong input.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "lehr/base/error.h"

namespace lehr {

namespace any_error {
/// The message of the lehr::Error of any kind that `action` throws; a failure if it throws none.
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
}  // namespace any_error

/// The message of the usage error that `action` throws; "no error" if it throws none.
template <class Action>
std::string error_of(const Action& action) {
  try {
    action();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::usage);
    return error.what();
  }
  return "no error";
}

}  // namespace lehr
