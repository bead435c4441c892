#include "app/models.h"

#include "lehr/model/llama3/spec.h"
#include "lehr/model/qwen3_dense/spec.h"
#include "lehr/model/qwen3_moe/spec.h"

namespace lehr::app {

descriptor::ModelFamilies models() {
  descriptor::ModelFamilies families;
  families.add(model::qwen3_dense_family());
  families.add(model::qwen3_moe_family());
  families.add(model::llama3_family());
  return families;
}

}  // namespace lehr::app
