// All families of lehr/model/, for tests.
#pragma once

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

namespace lehr::model::test {

/// In the order of specs() in test/train/support.cpp.
inline descriptor::ModelFamilies all_families() {
  descriptor::ModelFamilies families;
  for (const auto& family :
       {qwen3_dense_family(),
        qwen3_moe_family(),
        llama3_family(),
        olmo2_family(),
        qwen2_family(),
        mistral_family(),
        smollm3_family(),
        olmo3_family(),
        gemma3_family(),
        gemma4_family(),
        mixtral_family(),
        deepseek_v3_family(),
        glm4_moe_family(),
        minimax_m2_family(),
        gpt_oss_family(),
        qwen3_next_family(),
        qwen3_5_family(),
        qwen3_5_moe_family(),
        nemotron_h_family()}) {
    families.add(family);
  }
  return families;
}

}  // namespace lehr::model::test
