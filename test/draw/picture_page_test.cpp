// The page around a picture: it holds the picture unchanged and loads nothing.
#include "lehr/draw/picture_page.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lehr {
namespace {

using testing::HasSubstr;
using testing::Not;

TEST(PicturePage, HoldsThePictureAndLoadsNothing) {
  const std::string page = picture_page("a < b", "<svg><rect><title>{one}</title></rect></svg>\n");
  EXPECT_THAT(page, HasSubstr("<title>a &lt; b</title>"));
  EXPECT_THAT(page, HasSubstr("<main>\n<svg><rect><title>{one}</title></rect></svg>\n</main>"));
  for (const char* loads : {"src=", "href=", "http:", "https:", "import ", "url("}) {
    EXPECT_THAT(page, Not(HasSubstr(loads)));
  }
}

}  // namespace
}  // namespace lehr
