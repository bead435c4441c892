#include "lehr/pipeline/program_csv.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <filesystem>

#include "lehr/base/error.h"
#include "lehr/base/file.h"
#include "lehr/pipeline/communication.h"
#include "lehr/pipeline/schedules.h"
#include "test/base/error_of.h"

namespace lehr::pipeline {
namespace {

using testing::HasSubstr;

std::string csv_refusal(std::string_view csv) {
  return error_of([&] { program_from_csv(csv, "my.csv"); });
}

std::string csv_of(const Program& program) {
  std::string csv = to_text(program);
  std::replace(csv.begin(), csv.end(), ' ', ',');
  return csv;
}

TEST(ProgramCsv, ReadsTheActionsOfEverySchedule) {
  for (const ScheduleInfo& info : all_schedules()) {
    const Program program = build_program({info.schedule, 3, info.default_stages_per_rank, 7});
    const Program whole = add_communication(program);
    EXPECT_EQ(program_from_csv(csv_of(program), "compute only"), whole) << info.name;
    EXPECT_EQ(program_from_csv(csv_of(whole), "with communication"), whole) << info.name;
  }
}

TEST(ProgramCsv, ReadsEmptyCellsOtherLineEndsAndBothFormsOfOverlap) {
  const Program expected = add_communication(parse_program("0F0 0F1|0B0 0B1"));
  EXPECT_EQ(program_from_csv(",0F0,,(0F1;0B0)OVERLAP_F_B,0B1,\r\n\r\n", "f"), expected);
  EXPECT_EQ(program_from_csv("\xEF\xBB\xBF \"0F0\", 0F1|0B0 ,0B1", "f"), expected);
}

TEST(ProgramCsv, AssignsStagesToTheRanksThatComputeThem) {
  const Program program = program_from_csv("0F0,,,3F0,3B0,,,0B0\n,1F0,2F0,,,2I0,1I0,2W0,1W0\n", "v.csv");
  EXPECT_EQ(program.rank_of_stage, (std::vector<int64_t>{0, 1, 1, 0}));
  EXPECT_EQ(
      to_text(program),
      "0F0 0SEND_F0 3RECV_F0 3F0 3B0 3SEND_B0 0RECV_B0 0B0\n"
      "1RECV_F0 1F0 2F0 2SEND_F0 2RECV_B0 2I0 1I0 1SEND_B0 2W0 1W0\n");
}

TEST(ProgramCsv, NamesTheFileLineAndColumnOfAnError) {
  EXPECT_THAT(
      csv_refusal("0F0,0B0\n1F0,,1X0\n"), HasSubstr("my.csv: row 2, column 3: action \"1X0\": expected a stage"));
  EXPECT_THAT(csv_refusal("(0F0;0Q0)OVERLAP_F_B"), HasSubstr("my.csv: row 1, column 1: action \"0Q0\" of \"0F0|0Q0\""));
  EXPECT_THAT(csv_refusal("0UNSHARD,0F0"), HasSubstr("my.csv: row 1, column 1: \"0UNSHARD\": Lehr unshards, reshards"));
  EXPECT_EQ(csv_refusal("\n \n"), "my.csv: expected one row of actions per rank, found none");
  EXPECT_EQ(csv_refusal("0F0\n\n1F0\n"), "my.csv: row 2: expected the actions of rank 1, found none");
  EXPECT_THAT(csv_refusal("0F0,0B0\n1F0\n"), HasSubstr("my.csv: pipeline program, rank 1: stage 1 has no backward"));
  EXPECT_THAT(
      csv_refusal("0F0,1F0\n1F0\n"), HasSubstr("my.csv: pipeline program, rank 1, entry 0: 1F0 computes stage 1"));
  EXPECT_THAT(csv_refusal("0B0,0F0\n"), HasSubstr("my.csv: pipeline program: deadlock: rank 0 at entry 0"));
  EXPECT_THAT(
      csv_refusal("0B0,0F0\n"),
      testing::EndsWith("(rank 0 is row 1; entries are counted from 0, without empty cells)"));
}

TEST(ProgramCsv, IsReadFromAFile) {
  const auto path = std::filesystem::path(testing::TempDir()) / "lehr_pipeline_program.csv";
  write_file_atomically(path, "0F0,0B0\n1F0,1B0\n");
  EXPECT_EQ(read_program_csv(path), add_communication(parse_program("0F0 0B0\n1F0 1B0")));
  std::filesystem::remove(path);
  EXPECT_THROW(read_program_csv(path), Error);
}

}  // namespace
}  // namespace lehr::pipeline
