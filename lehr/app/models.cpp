#include "lehr/app/models.h"

#include "lehr/model/llama3/family.h"
#include "lehr/model/qwen3_dense/family.h"
#include "lehr/model/qwen3_moe/family.h"

namespace lehr::app {

train::TrainSpecs models() {
  train::TrainSpecs specs;
  specs.add({.family = model::qwen3_dense_family(), .parallelize = model::parallelize_qwen3_dense});
  specs.add({.family = model::qwen3_moe_family(), .parallelize = model::parallelize_qwen3_moe});
  specs.add({.family = model::llama3_family(), .parallelize = model::parallelize_llama3});
  return specs;
}

}  // namespace lehr::app
