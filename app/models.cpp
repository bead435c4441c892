#include "app/models.h"

#include "lehr/model/llama3/spec.h"
#include "lehr/model/qwen3_dense/spec.h"
#include "lehr/model/qwen3_moe/spec.h"

namespace lehr::app {

train::TrainSpecs models() {
  train::TrainSpecs specs;
  specs.add(model::qwen3_dense_family());
  specs.add(model::qwen3_moe_family());
  specs.add(model::llama3_family());
  return specs;
}

}  // namespace lehr::app
