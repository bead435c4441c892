#include "lehr/app/models.h"

#include "lehr/model/deepseek_v3/family.h"
#include "lehr/model/gemma3/family.h"
#include "lehr/model/gemma4/family.h"
#include "lehr/model/glm4_moe/family.h"
#include "lehr/model/gpt_oss/family.h"
#include "lehr/model/llama3/family.h"
#include "lehr/model/minimax_m2/family.h"
#include "lehr/model/mistral/family.h"
#include "lehr/model/mixtral/family.h"
#include "lehr/model/nemotron_h/family.h"
#include "lehr/model/olmo2/family.h"
#include "lehr/model/olmo3/family.h"
#include "lehr/model/qwen2/family.h"
#include "lehr/model/qwen3_5/family.h"
#include "lehr/model/qwen3_dense/family.h"
#include "lehr/model/qwen3_moe/family.h"
#include "lehr/model/qwen3_next/family.h"
#include "lehr/model/smollm3/family.h"

namespace lehr::app {

train::TrainSpecs models() {
  train::TrainSpecs specs;
  specs.add({.family = model::qwen3_dense_family(), .parallelize = model::parallelize_qwen3_dense});
  specs.add({.family = model::qwen3_moe_family(), .parallelize = model::parallelize_qwen3_moe});
  specs.add({.family = model::llama3_family(), .parallelize = model::parallelize_llama3});
  specs.add({.family = model::qwen2_family(), .parallelize = model::parallelize_qwen2});
  specs.add({.family = model::mistral_family(), .parallelize = model::parallelize_mistral});
  specs.add({.family = model::smollm3_family(), .parallelize = model::parallelize_smollm3});
  specs.add({.family = model::olmo2_family(), .parallelize = model::parallelize_olmo2});
  specs.add({.family = model::olmo3_family(), .parallelize = model::parallelize_olmo3});
  specs.add({.family = model::gemma3_family(), .parallelize = model::parallelize_gemma3});
  specs.add({.family = model::gemma4_family(), .parallelize = model::parallelize_gemma4});
  specs.add({.family = model::mixtral_family(), .parallelize = model::parallelize_mixtral});
  specs.add({.family = model::deepseek_v3_family(), .parallelize = model::parallelize_deepseek_v3});
  specs.add({.family = model::glm4_moe_family(), .parallelize = model::parallelize_glm4_moe});
  specs.add({.family = model::minimax_m2_family(), .parallelize = model::parallelize_minimax_m2});
  specs.add({.family = model::gpt_oss_family(), .parallelize = model::parallelize_gpt_oss});
  specs.add({.family = model::qwen3_next_family(), .parallelize = model::parallelize_qwen3_next});
  specs.add({.family = model::qwen3_5_family(), .parallelize = model::parallelize_qwen3_5});
  specs.add({.family = model::qwen3_5_moe_family(), .parallelize = model::parallelize_qwen3_5_moe});
  specs.add({.family = model::nemotron_h_family(), .parallelize = model::parallelize_nemotron_h});
  return specs;
}

}  // namespace lehr::app
