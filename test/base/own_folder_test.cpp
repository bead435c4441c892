#include "lehr/base/own_folder.h"

#include <gtest/gtest.h>

namespace lehr {
namespace {

// That of the Python module is tested in test/python.
TEST(OwnFolder, IsTheProgramsHoweverItWasCalled) {
  EXPECT_TRUE(std::filesystem::exists(own_folder() / "base_test")) << own_folder();
}

}  // namespace
}  // namespace lehr
