// The context of operators: values of scopes, nested, listed, and copied to another thread.
#include "lehr/base/call_context.h"

#include <gmock/gmock.h>

#include <thread>

namespace lehr {
namespace {

const ContextSlot<const char*> kWord("word of the test");
const ContextSlot<int> kNumber("number of the test");

TEST(CallContext, HasTheValueOfTheInnermostScope) {
  EXPECT_EQ(kNumber.get(), 0);
  {
    const ContextScope<int> outer(kNumber, 1);
    {
      const ContextScope<int> inner(kNumber, -2);
      const ContextScope<const char*> other(kWord, "word");
      EXPECT_EQ(kNumber.get(), -2);
      EXPECT_STREQ(kWord.get(), "word");
    }
    EXPECT_EQ(kNumber.get(), 1);
    EXPECT_EQ(kWord.get(), nullptr);
  }
  EXPECT_EQ(kNumber.get(), 0);
}

TEST(CallContext, NamesTheSlotsThatAreSet) {
  EXPECT_THAT(CallContext::of_this_thread().names(), testing::IsEmpty());
  const ContextScope<int> scope(kNumber, 3);
  EXPECT_THAT(CallContext::of_this_thread().names(), testing::ElementsAre(testing::StrEq("number of the test")));
}

TEST(CallContext, IsOfItsThreadUnlessItIsCopied) {
  const ContextScope<int> scope(kNumber, 4);
  const CallContext here = CallContext::of_this_thread();
  std::thread([&] {
    EXPECT_EQ(kNumber.get(), 0);
    {
      const WithContext with(here);
      EXPECT_EQ(kNumber.get(), 4);
    }
    EXPECT_EQ(kNumber.get(), 0);
  }).join();
  EXPECT_EQ(kNumber.get(here), 4);
}

}  // namespace
}  // namespace lehr
