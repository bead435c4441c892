#include "lehr/pipeline/check_program.h"

#include <gmock/gmock.h>

#include "lehr/pipeline/communication.h"
#include "lehr/pipeline/schedules.h"
#include "test/base/error_of.h"

namespace lehr::pipeline {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

std::string refusal(const Program& program) {
  return error_of([&] { check_program(program); });
}
std::string refusal(const char* text) {
  return refusal(parse_program(text));
}

TEST(CheckProgram, AcceptsAProgramWithAndWithoutCommunication) {
  check_program(parse_program("0F0 0B0\n1F0 1I0 1W0"));
  check_program(parse_program("0F0 0SEND_F0 0RECV_B0 0B0\n1RECV_F0 1F0 1I0 1SEND_B0 1W0"));
  check_program(parse_program("0F0 0SEND_F0\n1RECV_F0 1F0"));
}

TEST(CheckProgram, RefusesInvalidShapes) {
  EXPECT_THAT(refusal(Program{}), HasSubstr("it has no ranks"));
  EXPECT_THAT(refusal(Program{.num_microbatches = 1, .rank_of_stage = {}, .ranks = {{}}}), HasSubstr("no stages"));
  EXPECT_THAT(
      refusal(Program{.num_microbatches = 0, .rank_of_stage = {0}, .ranks = {{}}}),
      HasSubstr("expected at least 1 micro-batch, found 0"));
  EXPECT_THAT(
      refusal(Program{.num_microbatches = 1, .rank_of_stage = {0, 2}, .ranks = {{}, {}}}),
      HasSubstr("stage 1 is on rank 2, expected 0 to 1"));
  EXPECT_THAT(
      refusal(Program{.num_microbatches = 1, .rank_of_stage = {0}, .ranks = {{}, {}}}),
      HasSubstr("rank 1 has no stage"));
  EXPECT_THAT(
      refusal(Program{.num_microbatches = 1, .rank_of_stage = {0}, .ranks = {{{}}}}),
      HasSubstr("rank 0, entry 0: it has no action"));
  EXPECT_THAT(
      refusal(Program{.num_microbatches = int64_t{1} << 40, .rank_of_stage = {0}, .ranks = {{}}}),
      HasSubstr("found 0 actions in total"));
}

TEST(CheckProgram, RefusesMissingDuplicateAndMisplacedActions) {
  EXPECT_THAT(refusal("0F0 0B0 0B1\n1F0 1F1 1B0 1B1"), HasSubstr("rank 0: 0F1 is missing"));
  EXPECT_THAT(
      refusal("0F0 0F1 0B0\n1F0 1F1 1B0 1B1"),
      HasSubstr("rank 0: stage 0 has no backward of micro-batch 1: expected 0B1, or 0I1 and 0W1"));
  EXPECT_THAT(refusal("0F0 0I0\n1F0 1B0"), HasSubstr("rank 0: 0W0 is missing"));
  EXPECT_THAT(refusal("0F0 0W0\n1F0 1B0"), HasSubstr("rank 0: 0I0 is missing"));
  EXPECT_THAT(
      refusal("0F0 0B0 0W0\n1F0 1B0"), HasSubstr("rank 0, entry 2: 0W0: the backward is at entry 1 as a whole, 0B0"));
  EXPECT_THAT(refusal("0F0 0B0 0B0\n1F0 1B0"), HasSubstr("rank 0, entry 2: 0B0: it is already at entry 1"));
  EXPECT_THAT(refusal("0F0 1B0\n1F0 0B0"), HasSubstr("rank 0, entry 1: 1B0: stage 1 is on rank 1"));
  Program program = parse_program("0F0 0B0");
  program.ranks[0].push_back({{ActionKind::forward, 1, 0}});
  EXPECT_THAT(refusal(program), HasSubstr("rank 0, entry 2: 1F0: expected a stage below 1"));
  program.ranks[0].back() = {{ActionKind::forward, 0, -1}};
  EXPECT_THAT(refusal(program), HasSubstr("rank 0, entry 2: 0F-1: expected a micro-batch below 1"));
}

TEST(CheckProgram, RefusesCommunicationWithoutCounterpart) {
  EXPECT_THAT(refusal("0F0 0SEND_F0 0RECV_B0 0B0\n1RECV_F0 1F0 1B0"), HasSubstr("rank 1: 1SEND_B0 is missing"));
  EXPECT_THAT(refusal("0F0 0RECV_B0 0B0\n1RECV_F0 1F0 1B0 1SEND_B0"), HasSubstr("rank 0: 0SEND_F0 is missing"));
  EXPECT_THAT(
      refusal("0F0 0SEND_F0\n1RECV_F0 1F0 1SEND_F0"), HasSubstr("rank 1, entry 2: 1SEND_F0: there is no stage 2"));
  EXPECT_THAT(
      refusal("0F0 1F0 1RECV_F0"),
      HasSubstr("1RECV_F0: stages 1 and 0 are on the same rank, which passes tensors without communication"));
  EXPECT_THAT(
      refusal("0F0|0SEND_F0\n1RECV_F0 1F0"), HasSubstr("0SEND_F0: a send or receive must be an entry of its own"));
}

TEST(CheckProgram, RefusesSendsAndReceivesInDifferentOrders) {
  EXPECT_THAT(
      refusal("0F0 0SEND_F0 0F1 0SEND_F1\n1RECV_F1 1RECV_F0 1F0 1F1"),
      HasSubstr(
          "rank 1, entry 0: 1RECV_F1: transfer 0 from rank 0 to rank 1 is 0SEND_F0 (entry 1 of the sender) but the "
          "receiver expects 0SEND_F1"));
}

TEST(CheckProgram, RefusesDeadlocks) {
  EXPECT_THAT(
      refusal("0B0 0F0\n1F0 1B0"),
      StartsWith("pipeline program: deadlock: rank 0 at entry 0, 0B0, waits for 0F0, entry 1 of rank 0; rank 1 "
                 "at entry 0, 1F0, waits for 0F0, entry 1 of rank 0"));
  EXPECT_THAT(refusal("0F0 0W0 0I0\n1F0 1B0"), HasSubstr("rank 0 at entry 1, 0W0, waits for 0I0, entry 2 of rank 0"));
  EXPECT_THAT(refusal("0F0|0B0"), HasSubstr("rank 0 at entry 0, 0F0|0B0, waits for 0F0"));
  EXPECT_THAT(refusal("1F0 0F0"), HasSubstr("rank 0 at entry 0, 1F0, waits for 0F0"));
  EXPECT_THAT(refusal("0F0 0F1 0B1 0B0\n1F0 1B0 1F1 1B1"), testing::StrEq("no error"));
  EXPECT_THAT(
      refusal("0F0 0RECV_B0 0SEND_F0 0B0\n1RECV_F0 1F0 1B0 1SEND_B0"),
      HasSubstr(
          "rank 0 at entry 1, 0RECV_B0, waits for 1SEND_B0, entry 3 of rank 1; rank 1 at entry 0, 1RECV_F0, waits "
          "for 0SEND_F0, entry 2 of rank 0"));
  EXPECT_THAT(
      refusal("0F0 0SEND_F0\n1F0 1RECV_F0"),
      HasSubstr("rank 1 at entry 0, 1F0, waits for 1RECV_F0, entry 1 of rank 1"));
  EXPECT_THAT(
      refusal("0SEND_F0 0F0\n1RECV_F0 1F0"),
      HasSubstr("rank 0 at entry 0, 0SEND_F0, waits for 0F0, entry 1 of rank 0"));
}

// Removes, duplicates or replaces any one action of a program that has all kinds of actions.
TEST(CheckProgram, RefusesEverySingleMistake) {
  const Program right = add_communication(build_program({Schedule::dual_pipe_v, 2, 2, 5}));
  check_program(right);
  for (size_t rank = 0; rank < right.ranks.size(); ++rank) {
    for (size_t i = 0; i < right.ranks[rank].size(); ++i) {
      const auto at = static_cast<std::ptrdiff_t>(i);
      const std::string what = fmt::format("rank {}, entry {}: {}", rank, i, to_string(right.ranks[rank][i]));
      Program wrong = right;
      wrong.ranks[rank].erase(wrong.ranks[rank].begin() + at);
      EXPECT_NE(refusal(wrong), "no error") << "without " << what;
      wrong = right;
      wrong.ranks[rank].push_back(right.ranks[rank][i]);
      EXPECT_NE(refusal(wrong), "no error") << "twice " << what;
      for (int kind = 0; kind < 8; ++kind) {
        wrong = right;
        wrong.ranks[rank][i][0].kind = static_cast<ActionKind>(kind);
        EXPECT_EQ(refusal(wrong) == "no error", wrong == right) << what << " as " << to_string(wrong.ranks[rank][i]);
      }
    }
  }
}

TEST(AddCommunication, NamesTheRanksOfADeadlock) {
  const Program program = parse_program("0F0 0B0 0F1 0B1\n1F0 1F1 1B0 1B1");
  EXPECT_THAT(
      error_of([&] { add_communication(program); }),
      HasSubstr(
          "rank 0 at entry 1, 0B0, waits for 1B0, entry 2 of rank 1; rank 1 at entry 1, 1F1, waits for 0F1, entry 2 "
          "of rank 0"));
}

TEST(AddCommunication, RefusesAProgramThatHasCommunication) {
  EXPECT_THAT(
      error_of([] { add_communication(parse_program("0F0 0SEND_F0\n1RECV_F0 1F0")); }),
      HasSubstr("it has communication already"));
}

TEST(PeakForwards, CountUntilWgradOrUntilDgrad) {
  const Program program = parse_program("0F0 0F1 0I0 0F2 0W0 0I1 0I2 0W1 0W2");
  EXPECT_EQ(peak_forwards(program), (std::vector<int64_t>{3}));
  EXPECT_EQ(peak_forwards_until_input(program), (std::vector<int64_t>{2}));
  EXPECT_EQ(peak_forwards(parse_program("0F0 0F1|0B0 0B1")), (std::vector<int64_t>{2}));
}

}  // namespace
}  // namespace lehr::pipeline
