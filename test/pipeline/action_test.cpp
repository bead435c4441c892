#include "lehr/pipeline/action.h"

#include <gmock/gmock.h>

#include "lehr/base/error.h"
#include "lehr/pipeline/program.h"
#include "test/base/error_of.h"

namespace lehr::pipeline {
namespace {

std::string message_of(const std::string& text) {
  return error_of([&] { parse_program(text); });
}

TEST(Actions, HaveATextFormThatReadsBack) {
  for (const char* text :
       {"0F0", "0SEND_F0", "3RECV_F0", "0SEND_B12", "7RECV_B1", "0F3|3B1", "0I2", "0W2", "31F511|0I0|2W3"}) {
    EXPECT_EQ(to_string(parse_actions(text)), text);
  }
  EXPECT_EQ(parse_actions("3RECV_F10"), (Actions{{ActionKind::receive_forward, 3, 10}}));
  EXPECT_EQ(parse_actions("0F3|3B1"), (Actions{{ActionKind::forward, 0, 3}, {ActionKind::backward_full, 3, 1}}));
}

TEST(Actions, ErrorsQuoteTheInvalidText) {
  for (const char* text : {"", "F0", "0F", "0X1", "0f1", "0F1|", "|0F1", "0F1x", "-1F0", "0F-1", "99999999999F0"}) {
    EXPECT_THROW(parse_actions(text), Error) << text;
  }
  EXPECT_THAT(
      any_error::error_of([&] { parse_actions("0F3|3Q1"); }),
      testing::StartsWith("action \"3Q1\" of \"0F3|3Q1\": expected a stage, one of F B I W"));
}

TEST(Programs, HaveATextFormThatReadsBack) {
  const std::string text = "0F0 0SEND_F0 0RECV_B0 0B0\n1RECV_F0 1F0 1B0 1SEND_B0\n";
  const Program program = parse_program(text);
  EXPECT_EQ(to_text(program), text);
  EXPECT_EQ(program.num_microbatches, 1);
  EXPECT_EQ(program.rank_of_stage, (std::vector<int64_t>{0, 1}));
  EXPECT_EQ(program.stages_of(1), (std::vector<int64_t>{1}));
  EXPECT_TRUE(program.has_backward());
  EXPECT_TRUE(program.has_communication());
  EXPECT_EQ(parse_program("  0F0   0SEND_F0 0RECV_B0\t0B0 \r\n1RECV_F0 1F0 1B0 1SEND_B0"), program);
}

TEST(Programs, AreInferenceIfTheyReceiveNoGradients) {
  EXPECT_FALSE(parse_program("0F0 0SEND_F0\n1RECV_F0 1F0").has_backward());
  EXPECT_TRUE(parse_program("0F0 0RECV_B0\n1F0").has_backward());
}

TEST(Programs, ErrorsNameTheInvalidEntry) {
  EXPECT_THAT(message_of("0F0 0B0\n1F0 1G0"), testing::StartsWith("pipeline program, rank 1, entry 1: action \"1G0\""));
  EXPECT_THAT(message_of("0F0 1F0\n1F0"), testing::HasSubstr("1F0 computes stage 1, which rank 0 computes as well"));
  EXPECT_THAT(message_of("0F0 0B0\n2F0 2B0"), testing::HasSubstr("no rank computes a forward of stage 1"));
  EXPECT_THAT(message_of("0F0 0F2000000"), testing::HasSubstr("names a stage or micro-batch far beyond the 2 actions"));
}

}  // namespace
}  // namespace lehr::pipeline
