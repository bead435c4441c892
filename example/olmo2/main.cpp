// The program: every command of lehr, for OLMo 2.
#include "lehr/app/main.h"

#include "family.h"

int main(int argc, char** argv) {
  lehr::train::TrainSpecs specs;
  specs.add({.family = olmo2::olmo2_family(), .parallelize = olmo2::parallelize_olmo2});
  return lehr::app::main(argc, argv, specs);
}
