// The summary line of a model folder that a command has written.
#pragma once

#include <string>

#include "lehr/pretrained/model_output.h"

namespace lehr::app {

/// Prints "child: 39 tensors, 2.35 MiB in 1 file; config.json, pruning.json" on standard output.
void print_written(const std::string& folder, const pretrained::WrittenModel& written);

}  // namespace lehr::app
