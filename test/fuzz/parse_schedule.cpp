// Pipeline schedules: CSV files and their text form.
#include <algorithm>

#include "lehr/pipeline/program.h"
#include "lehr/pipeline/program_csv.h"
#include "test/fuzz/harness.h"

void lehr::fuzz::read_input(std::string_view input) {
  accepts([&] { pipeline::parse_program(input); });
  accepts([&] {
    const pipeline::Program program = pipeline::program_from_csv(input, "schedule.csv");
    std::string csv = pipeline::to_text(program);
    std::replace(csv.begin(), csv.end(), ' ', ',');
    std::string again;
    if (!accepts([&] { again = pipeline::to_text(pipeline::program_from_csv(csv, "again.csv")); }) ||
        again != pipeline::to_text(program)) {
      broken("read, written and read again, the schedule differs");
    }
  });
}
