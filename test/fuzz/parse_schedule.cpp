// Pipeline schedules: CSV files and their text form.
#include "lehr/pipeline/program.h"
#include "lehr/pipeline/program_csv.h"
#include "test/fuzz/harness.h"

void lehr::fuzz::read_input(std::string_view input) {
  accepts([&] { pipeline::parse_program(input); });
  accepts([&] {
    const pipeline::Program program = pipeline::program_from_csv(input, "schedule.csv");
    const std::string csv = pipeline::program_to_csv(program);
    std::string again;
    if (!accepts([&] { again = pipeline::program_to_csv(pipeline::program_from_csv(csv, "again.csv")); }) ||
        again != csv) {
      broken("read, written and read again, the schedule differs");
    }
  });
}
