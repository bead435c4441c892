// A program with every command of lehr, for the model families of its caller.
#pragma once

#include "lehr/train/train_spec.h"

namespace lehr::app {

/// Runs the command that the arguments name, as the program lehr does (`lehr --help` lists them), and ends the process
/// with its exit code. Commands know the families of `specs` and no others; models() has those of lehr/model/.
/// `launch` starts the running program again for each rank. Errors are printed, not thrown. Call it first in main().
int main(int argc, char** argv, const train::TrainSpecs& specs);

}  // namespace lehr::app
