#include "lehr/train/goodput.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <vector>

#include "lehr/base/log.h"

namespace lehr::train {

void Goodput::started(double seconds) {
  before_steps_ = seconds;
  for (const auto& [reason, pause] : pauses_) {
    before_steps_ -= pause;
  }
}

std::string Goodput::describe(double seconds) const {
  const auto pause = [&](TimeLeft::Pause reason) {
    const auto found = pauses_.find(reason);
    return found == pauses_.end() ? 0 : found->second;
  };
  const double validations = pause(TimeLeft::Pause::validation), saves = pause(TimeLeft::Pause::save);
  const double other = std::max(0.0, seconds - in_steps_ - before_steps_ - validations - saves);
  const auto percent = [&](double part) { return 100 * part / std::max(seconds, 1e-9); };
  std::vector<std::string> rest;
  for (const auto& [name, part] :
       {std::pair("before the first step", before_steps_),
        std::pair("waiting for data", for_data_),
        std::pair("validations", validations),
        std::pair("saves", saves),
        std::pair("other", other)}) {
    if (percent(part) >= 0.05) {
      rest.push_back(fmt::format("{} {:.1f} %", name, percent(part)));
    }
  }
  return fmt::format(
      "{:.1f} % of {} in steps{}{}",
      percent(in_steps_ - for_data_),
      human_seconds(seconds),
      rest.empty() ? "" : "; ",
      fmt::join(rest, ", "));
}

}  // namespace lehr::train
