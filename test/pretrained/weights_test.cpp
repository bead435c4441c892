// Loading weights into models, and conversion between folders.
#include "lehr/pretrained/weights.h"

#include <gmock/gmock.h>

#include "lehr/base/file.h"
#include "lehr/config/json.h"
#include "lehr/peft/inject.h"
#include "lehr/pretrained/convert.h"
#include "lehr/pretrained/model_folder.h"
#include "lehr/pretrained/save_model.h"
#include "lehr/state/safetensors_writer.h"
#include "lehr/state/weights.h"
#include "test/base/error_of.h"
#include "test/train/support.h"

namespace lehr::pretrained {
namespace {

namespace fs = std::filesystem;
using any_error::error_of;
using descriptor::ExpertLayout;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using train::testing::families;
using train::testing::Folder;

const fs::path kReferences = fs::path(LEHR_SOURCE_DIR) / "test/data/reference";

// A folder with the weights of a reference, changed by `change`.
template <class Change>
void write_changed(const fs::path& folder, const std::string& reference, const Change& change) {
  fs::create_directories(folder);
  fs::copy_file(kReferences / reference / "config.json", folder / "config.json");
  const state::WeightReader reader(kReferences / reference);
  std::map<std::string, at::Tensor> tensors;
  for (const auto& name : reader.names()) {
    tensors[name] = reader.tensor(name);
  }
  change(tensors);
  state::save_safetensors(folder / "model.safetensors", {tensors.begin(), tensors.end()});
}

std::shared_ptr<nn::Model> loaded(const fs::path& folder, const pipeline::PipelineStageInfo& stage = {}) {
  const auto args = families().from_hf_folder(folder);
  const auto model = args->build({.stage = stage});
  nn::materialize(*model, at::kCPU, at::kFloat);
  const state::WeightReader reader(folder);
  load_weights(*model, checkpoint_map(*args, reader), reader);
  return model;
}

void expect_same_parameters(const nn::Module& a, const nn::Module& b) {
  const auto left = nn::named_parameters(a);
  const auto right = nn::named_parameters(b);
  ASSERT_EQ(left.size(), right.size());
  for (size_t i = 0; i < left.size(); ++i) {
    EXPECT_TRUE(at::equal(left[i].parameter->value(), right[i].parameter->value())) << left[i].name;
  }
}

TEST(ModelFolders, NamesTheNewestCheckpointIfTheFolderIsThatOfARun) {
  const Folder folder;
  for (const char* name : {"step-3", "step-20", "step-100.aside", "step-"}) {
    fs::create_directories(folder.path() / "checkpoints" / name);
  }
  for (const fs::path& given : {folder.path(), folder.path() / "checkpoints"}) {
    EXPECT_THAT(
        error_of([&] { families().from_hf_folder(given); }),
        AllOf(
            HasSubstr(given.string() + ": the folder has no config.json"),
            HasSubstr(
                "did you mean the newest checkpoint in it, " + (folder.path() / "checkpoints/step-20?").string())));
  }
  EXPECT_THAT(
      error_of([&] { families().from_hf_folder(folder.path() / "checkpoints/step-3"); }),
      HasSubstr("has no config.json, so it holds no model"));
}

TEST(LoadWeights, LeavesOutTheLayersForMultiTokenPredictionThatTheConfigCounts) {
  const Folder folder;
  for (const int64_t layers : {0, 1}) {
    const fs::path made = folder.path() / std::to_string(layers);
    write_changed(made, "glm4_moe_norms", [](auto& tensors) {
      tensors["model.layers.3.eh_proj.weight"] = tensors.at("lm_head.weight").clone();
      tensors["model.layers.3.mlp.experts.0.up_proj.weight"] = tensors.at("lm_head.weight").clone();
    });
    Node config = parse_json_file(made / "config.json");
    config.set("num_nextn_predict_layers", Node(layers));
    write_file_atomically(made / "config.json", to_json(config));
  }
  EXPECT_THAT(
      error_of([&] { loaded(folder.path() / "0"); }), HasSubstr("unexpected tensors: model.layers.3.eh_proj.weight"));
  expect_same_parameters(*loaded(folder.path() / "1"), *loaded(kReferences / "glm4_moe_norms"));
  const auto args = families().from_hf_folder(folder.path() / "1");
  const state::WeightReader reader(folder.path() / "1");
  const auto difference = check_checkpoint(checkpoint_map(*args, reader), parameter_specs(*args->build({})), reader);
  EXPECT_EQ(difference.left_out.size(), 2U);

  const fs::path next = folder.path() / "next";
  write_changed(next, "qwen3_next_interval", [](auto& tensors) {
    tensors["mtp.fc.weight"] = tensors.at("lm_head.weight").clone();
  });
  expect_same_parameters(*loaded(next), *loaded(kReferences / "qwen3_next_interval"));

  const fs::path nemotron = folder.path() / "nemotron";
  write_changed(nemotron, "nemotron_h_latent", [](auto& tensors) {
    tensors["mtp.layers.0.eh_proj.weight"] = tensors.at("lm_head.weight").clone();
  });
  expect_same_parameters(*loaded(nemotron), *loaded(kReferences / "nemotron_h_latent"));

  const fs::path minimax = folder.path() / "minimax";  // its config.json counts three
  write_changed(minimax, "minimax_m2_published", [](auto& tensors) {
    tensors["model.layers.5.self_attn.q_proj.weight"] = tensors.at("lm_head.weight").clone();
  });
  expect_same_parameters(*loaded(minimax), *loaded(kReferences / "minimax_m2_published"));
}

// A model of texts and images, as Qwen3.5, Gemma 3 and Gemma 4 are published.
struct Whole {
  const char* text;  // the reference of the text model
  const char* type;
  std::string prefix;  // of the backbone's tensors
  std::vector<std::string> others;
};

TEST(LoadWeights, ReadTheTextModelOfAModelOfTextsAndImages) {
  const std::vector<Whole> cases{
      {"qwen3_5_interval", "qwen3_5", "model.language_model.", {"model.visual.blocks.0.norm1.weight", "mtp.fc.weight"}},
      {"qwen3_5_moe_fused", "qwen3_5_moe", "model.language_model.", {"model.visual.pos_embed.weight"}},
      {"gemma3_pattern", "gemma3", "language_model.model.", {"vision_tower.vision_model.post_layernorm.weight"}},
      {"gemma3_tables", "gemma3", "model.language_model.", {"model.multi_modal_projector.mm_soft_emb_norm.weight"}},
      {"gemma3_untied", "gemma3", "language_model.model.", {"multi_modal_projector.mm_input_projection_weight"}},
      {"gemma4_experts",
       "gemma4",
       "model.language_model.",
       {"model.vision_tower.patch_embedder.input_proj.weight",
        "model.embed_vision.embedding_projection.weight",
        "model.embed_audio.embedding_projection.weight"}},
      // Layers 3 to 5 read the keys and values of others, and published files have projections for them all the same.
      {"gemma4_small",
       "gemma4",
       "model.language_model.",
       {"model.language_model.layers.3.self_attn.k_proj.weight",
        "model.language_model.layers.5.self_attn.v_proj.weight",
        "model.language_model.layers.5.self_attn.k_norm.weight",
        "model.audio_tower.output_proj.bias"}}};
  for (const Whole& one : cases) {
    SCOPED_TRACE(one.text);
    const Folder folder;
    const fs::path original = kReferences / one.text, made = folder.path() / "whole", text = folder.path() / "text";
    write_changed(made, one.text, [&](auto& tensors) {
      const auto own = tensors;
      tensors.clear();
      for (const auto& [name, tensor] : own) {
        const bool is_old_head = name == "lm_head.weight" && one.prefix.starts_with("language_model.");
        tensors
            [name.starts_with("model.") ? one.prefix + name.substr(6) : (is_old_head ? "language_model." : "") + name] =
                tensor;
      }
      for (const std::string& name : one.others) {
        tensors[name] = own.at("model.norm.weight").clone();
      }
    });
    Node whole = Node::make_table();
    whole.set("architectures", parse_json(R"(["ForConditionalGeneration"])", "config.json"));
    whole.set("model_type", Node(one.type));
    whole.set("text_config", parse_json_file(original / "config.json"));
    write_file_atomically(made / "config.json", to_json(whole));
    expect_same_parameters(*loaded(made), *loaded(original));
    convert_checkpoint({.model = made, .output = text}, families());
    EXPECT_EQ(parse_json_file(text / "config.json").at("model_type").as_string(), std::string(one.type) + "_text");
    expect_same_parameters(*loaded(text), *loaded(original));
  }
}

// PEFT trains an embedding model (FEATURE_EXTRACTION) on the backbone of a language model.
TEST(ModelFolders, ReadTheAdaptersOfABackboneAsAnEmbeddingModel) {
  const Folder folder;
  const fs::path base = kReferences / "qwen3_yarn", adapters = folder.path() / "adapters";
  fs::create_directories(adapters);
  write_file_atomically(
      adapters / "adapter_config.json",
      R"({"peft_type": "LORA", "r": 2, "lora_alpha": 4, "base_model_name_or_path": ")" + base.string() + "\"}");
  const auto shape = state::WeightReader(base).info("model.layers.0.self_attn.q_proj.weight").shape;
  for (const auto& [prefix, head] :
       {std::pair("", descriptor::Head::embedding), {"model.", descriptor::Head::causal_lm}}) {
    const std::string module = std::string("base_model.model.") + prefix + "layers.0.self_attn.q_proj.";
    state::save_safetensors(
        adapters / "adapter_model.safetensors",
        {{module + "lora_A.weight", at::ones({2, shape[1]})}, {module + "lora_B.weight", at::ones({shape[0], 2})}});
    const auto opened = ModelFolder::open(adapters, families());
    EXPECT_EQ(opened.args->head(), head);
    const auto model = opened.load(at::kCPU, at::kFloat);
    ASSERT_EQ(peft::merge_peft(*model), 1);
    const auto plain = loaded(base);
    const std::string name = "model.layers.0.self_attn.q_proj.weight";
    const auto value_in = [&](const nn::Module& of) {
      for (const auto& [own, parameter] : nn::named_parameters(of)) {
        if (own == name) {
          return parameter->value().detach();
        }
      }
      return at::Tensor();
    };
    EXPECT_TRUE(at::allclose(value_in(*model), value_in(*plain) + 4)) << "twice the product, whose elements are 2";
  }
}

// PEFT's "all-linear" adapts the image encoder, too.
TEST(ModelFolders, LeaveOutTheAdaptersOfAnImageEncoder) {
  const Folder folder;
  const fs::path original = kReferences / "gemma3_pattern", made = folder.path() / "whole",
                 adapters = folder.path() / "adapters";
  write_changed(made, "gemma3_pattern", [](auto& tensors) {
    tensors["model.vision_tower.encoder.layers.0.mlp.fc1.weight"] = tensors.at("model.norm.weight").clone();
  });
  Node whole = Node::make_table();
  whole.set("model_type", Node("gemma3"));
  whole.set("text_config", parse_json_file(original / "config.json"));
  write_file_atomically(made / "config.json", to_json(whole));
  fs::create_directories(adapters);
  const std::string of_text = "base_model.model.model.language_model.layers.0.self_attn.q_proj.",
                    of_encoder = "base_model.model.model.vision_tower.encoder.layers.0.mlp.fc1.lora_A.weight";
  const auto shape = state::WeightReader(original).info("model.layers.0.self_attn.q_proj.weight").shape;
  const auto write_adapters = [&](const std::string& other) {
    state::save_safetensors(
        adapters / "adapter_model.safetensors",
        {{of_text + "lora_A.weight", at::zeros({2, shape[1]})},
         {of_text + "lora_B.weight", at::zeros({shape[0], 2})},
         {other, at::zeros({2, 4})}});
  };
  write_file_atomically(
      adapters / "adapter_config.json",
      R"({"peft_type": "LORA", "r": 2, "lora_alpha": 4, "base_model_name_or_path": ")" + made.string() + "\"}");
  write_adapters(of_encoder);
  const auto opened = ModelFolder::open(adapters, families());
  EXPECT_THAT(opened.adapters_of_encoder(), ElementsAre(of_encoder));
  EXPECT_NE(opened.load(at::kCPU, at::kFloat), nullptr);
  EXPECT_THAT(ModelFolder::open(made, families()).adapters_of_encoder(), IsEmpty());
  const std::string of_none = "base_model.model.model.other.lora_A.weight";
  write_adapters(of_none);
  EXPECT_THAT(error_of([&] { opened.load(at::kCPU, at::kFloat); }), HasSubstr("unexpected tensors: " + of_none));
}

// As models of embeddings are published, and as their task writes them.
TEST(LoadWeights, ABackboneWithoutThePrefixIsThatOfALanguageModel) {
  const Folder folder;
  const fs::path original = kReferences / "qwen3_yarn", bare = folder.path() / "bare";
  write_changed(bare, "qwen3_yarn", [](auto& tensors) {
    const auto own = tensors;
    tensors.clear();
    for (const auto& [name, tensor] : own) {
      tensors[name.starts_with("model.") ? name.substr(6) : name] = tensor;
    }
  });
  expect_same_parameters(*loaded(bare), *loaded(original));
}

TEST(ModelFolders, StopTokensAreThoseOfBothConfigs) {
  const Folder folder;
  const fs::path made = folder.path() / "model";
  write_changed(made, "qwen3_yarn", [](auto&) {});
  const auto own = families().from_hf_folder(made)->eos_token_ids();
  EXPECT_EQ(ModelFolder::open(made, families()).stop_ids(), own);
  write_file_atomically(made / "generation_config.json", R"({"eos_token_id": [7, 9]})");
  auto both = own;
  for (const int64_t id : {7, 9}) {
    if (std::find(own.begin(), own.end(), id) == own.end()) {
      both.push_back(id);
    }
  }
  EXPECT_EQ(ModelFolder::open(made, families()).stop_ids(), both);

  // A run with conversations writes the end of a turn beside its adapters.
  const fs::path adapters = folder.path() / "adapters";
  fs::create_directories(adapters);
  write_file_atomically(adapters / "generation_config.json", R"({"eos_token_id": [9, 99]})");
  const ModelFolder of_adapters{.path = adapters, .base = made, .args = families().from_hf_folder(made)};
  both.push_back(99);
  EXPECT_EQ(of_adapters.stop_ids(), both);
}

TEST(LoadWeights, NamesMissingMisshapenAndUnexpectedTensors) {
  const Folder folder;
  const std::string reference = "qwen3moe_sparse_step2";
  write_changed(folder.path() / "missing", reference, [](auto& tensors) {
    tensors.erase("model.layers.1.mlp.experts.5.up_proj.weight");
    tensors.erase("model.norm.weight");
  });
  EXPECT_THAT(
      error_of([&] { loaded(folder.path() / "missing"); }),
      AllOf(
          HasSubstr("missing: the checkpoint lacks "),
          HasSubstr("model.layers.1.mlp.experts.5.up_proj.weight"),
          HasSubstr("model.norm.weight")));
  write_changed(folder.path() / "misshapen", reference, [](auto& tensors) {
    tensors["model.layers.1.mlp.experts.5.up_proj.weight"] = at::ones({12, 25});
  });
  EXPECT_THAT(
      error_of([&] { loaded(folder.path() / "misshapen"); }),
      HasSubstr("misshapen: shapes differ from the model's: model.layers.1.mlp.experts.5.up_proj.weight (expected "
                "12x24, found 12x25); is this the checkpoint of another model?"));
  write_changed(folder.path() / "integers", reference, [](auto& tensors) {
    auto& weight = tensors["model.layers.1.mlp.experts.5.up_proj.weight"];
    weight = at::ones(weight.sizes(), at::kChar);
  });
  EXPECT_THAT(
      error_of([&] { loaded(folder.path() / "integers"); }),
      HasSubstr("integers: weights are integers, as a quantized checkpoint stores them: "
                "model.layers.1.mlp.experts.5.up_proj.weight (I8); dequantize"));
  write_changed(folder.path() / "surplus", reference, [](auto& tensors) {
    tensors["model.layers.1.mlp.experts.8.up_proj.weight"] = at::ones({12, 24});
    tensors["model.layers.1.self_attn.rotary_emb.inv_freq"] = at::ones({8});
  });
  EXPECT_THAT(
      error_of([&] { loaded(folder.path() / "surplus"); }),
      ::testing::EndsWith("surplus: unexpected tensors: model.layers.1.mlp.experts.8.up_proj.weight"));
}

// The weights would need 100 GB.
TEST(ModelFolders, AreRefusedBeforeMemoryOfADeclaredSizeIsAllocated) {
  const Folder folder;
  write_changed(folder.path() / "wide", "qwen3moe_sparse_step2", [](auto&) {});
  const fs::path file = folder.path() / "wide" / "config.json";
  Node config = parse_json_file(file);
  config.set("intermediate_size", Node(int64_t{1} << 30));
  write_file_atomically(file, to_json(config));
  const auto names_the_file = [&](const auto& open) {
    EXPECT_THAT(
        error_of(open),
        AllOf(
            HasSubstr("model.layers.0.mlp.gate_proj.weight (expected 1073741824x24, found 36x24)"),
            HasSubstr(file.string() + " declares "),
            HasSubstr("intermediate_size 1073741824")));
  };
  names_the_file([&] { ModelFolder::open(folder.path() / "wide", families()).load(at::kCPU, at::kFloat); });
  names_the_file(
      [&] { convert_checkpoint({.model = folder.path() / "wide", .output = folder.path() / "new"}, families()); });
}

TEST(LoadWeights, AcceptsATiedHeadThatEqualsTheEmbeddings) {
  const Folder folder;
  const std::string reference = "qwen3_tied_v4config";
  write_changed(folder.path() / "copy", reference, [](auto& tensors) {
    tensors["lm_head.weight"] = tensors.at("model.embed_tokens.weight").clone();
  });
  expect_same_parameters(*loaded(folder.path() / "copy"), *loaded(kReferences / reference));
  write_changed(folder.path() / "other", reference, [](auto& tensors) {
    tensors["lm_head.weight"] = tensors.at("model.embed_tokens.weight") + 1;
  });
  EXPECT_THAT(
      error_of([&] { loaded(folder.path() / "other"); }),
      HasSubstr("lm_head.weight: differs from model.embed_tokens.weight, but the model ties them"));
}

TEST(LoadWeights, StagesLoadTheirShare) {
  const fs::path folder = kReferences / "qwen3moe_sparse_step2";
  const auto whole = loaded(folder);
  std::map<std::string, at::Tensor> expected;
  for (const auto& [name, parameter] : nn::named_parameters(*whole)) {
    expected[name] = parameter->value();
  }
  size_t found = 0;
  for (int64_t stage = 0; stage < 2; ++stage) {
    const auto part = loaded(folder, {.current_stage = stage, .num_stages = 2});
    for (const auto& [name, parameter] : nn::named_parameters(*part)) {
      EXPECT_TRUE(at::equal(parameter->value(), expected.at(name))) << name;
      ++found;
    }
  }
  EXPECT_EQ(found, expected.size());
}

class ConvertEveryFamily : public ::testing::TestWithParam<const char*> {};

TEST_P(ConvertEveryFamily, ARoundTripWritesTheSameFile) {
  const Folder folder;
  const fs::path original = kReferences / GetParam();
  const auto there = convert_checkpoint(
      {.model = original, .output = folder.path() / "fused", .layout = ExpertLayout::fused, .max_shard_bytes = 8'000},
      families());
  EXPECT_GT(there.num_files, 1);
  EXPECT_THAT(there.left_out, IsEmpty());
  expect_same_parameters(*loaded(folder.path() / "fused"), *loaded(original));
  const std::string name = GetParam();
  const bool has_one_layout = name.starts_with("gpt_oss") || name == "gemma4_experts";
  ConvertOptions options{
      .model = folder.path() / "fused", .output = folder.path() / "back", .layout = ExpertLayout::per_expert};
  if (has_one_layout) {
    EXPECT_THAT(
        error_of([&] { convert_checkpoint(options, families()); }),
        HasSubstr("fused: models of this type have one layout of experts, fused; leave the expert layout out"));
    options.layout.reset();
  }
  const auto back = convert_checkpoint(options, families());
  EXPECT_EQ(back.num_files, 1);
  EXPECT_EQ(back.num_bytes, there.num_bytes);
  EXPECT_EQ(read_file(folder.path() / "back/model.safetensors"), read_file(original / "model.safetensors"));
  EXPECT_EQ(read_file(folder.path() / "back/config.json"), read_file(original / "config.json"));
}

INSTANTIATE_TEST_SUITE_P(
    References,
    ConvertEveryFamily,
    ::testing::Values(
        "qwen3_tied_v4config",
        "qwen3_seqcls",
        "qwen3_tokcls",
        "qwen3moe_sparse_step2",
        "llama_rope_llama3",
        "mixtral_experts",
        "deepseek_v3_yarn",
        "glm4_moe_norms",
        "minimax_m2_published",
        "gpt_oss_yarn",
        "gemma4_experts",
        "gemma4_small",
        "qwen3_next_interval",
        "qwen3_5_types",
        "nemotron_h_experts",
        "nemotron_h_latent"));

// transformers would look for quantized weights, and does not know Kimi K2's type without the code of its folder.
TEST(Convert, WritesPlainFolders) {
  const Folder folder;
  convert_checkpoint(
      {.model = kReferences / "gpt_oss_mxfp4", .output = folder.path() / "plain", .dtype = at::kFloat}, families());
  EXPECT_EQ(parse_json_file(folder.path() / "plain/config.json").find("quantization_config"), nullptr);
  convert_checkpoint({.model = kReferences / "kimi_k2", .output = folder.path() / "kimi"}, families());
  EXPECT_EQ(parse_json_file(folder.path() / "kimi/config.json").at("model_type").as_string(), "deepseek_v3");
  expect_same_parameters(*loaded(folder.path() / "kimi"), *loaded(kReferences / "kimi_k2"));
}

TEST(Convert, ChangesTheTypeInFilesAndConfig) {
  const Folder folder;
  const fs::path original = kReferences / "qwen3moe_sparse_step2";
  const auto report = convert_checkpoint(
      {.model = original, .output = folder.path() / "half/", .layout = ExpertLayout::fused, .dtype = at::kBFloat16},
      families());
  EXPECT_EQ(parse_json_file(folder.path() / "half/config.json").at("torch_dtype").as_string(), "bfloat16");
  const state::WeightReader reader(folder.path() / "half");
  EXPECT_EQ(reader.total_bytes(), report.num_bytes);
  EXPECT_EQ(reader.info("model.layers.1.mlp.experts.gate_up_proj").dtype, state::DType::kBF16);
  EXPECT_TRUE(at::equal(
      reader.tensor("model.layers.1.mlp.experts.gate_up_proj")[3].narrow(0, 0, 12),
      state::WeightReader(original).tensor("model.layers.1.mlp.experts.3.gate_proj.weight").to(at::kBFloat16)));
}

// sentence-transformers would take the mean of all tokens for a folder without them, such as that of Qwen3-Embedding.
TEST(Convert, CopiesTheFilesOfSentenceTransformers) {
  const Folder folder;
  const fs::path made = folder.path() / "made", copy = folder.path() / "copy";
  write_changed(made, "qwen3_tied_v4config", [](auto&) {});
  fs::create_directories(made / "1_Pooling");
  fs::create_directories(made / "2_Other");
  const std::vector<std::string> files{
      "1_Pooling/config.json", "config_sentence_transformers.json", "modules.json", "sentence_bert_config.json"};
  for (const std::string& file : files) {
    write_file_atomically(made / file, "{\"file\": \"" + file + "\"}");
  }
  write_file_atomically(made / "2_Other/config.json", "{}");
  convert_checkpoint({.model = made, .output = copy, .dtype = at::kBFloat16}, families());
  EXPECT_EQ(companions_of(copy), files);
  for (const std::string& file : files) {
    EXPECT_EQ(read_file(copy / file), read_file(made / file));
  }
  EXPECT_FALSE(fs::exists(copy / "2_Other"));
}

TEST(Convert, StoresTiedEmbeddingsOnceAndCopiesTheTokenizer) {
  const Folder folder;
  write_changed(folder.path() / "copy", "qwen3_tied_v4config", [](auto& tensors) {
    tensors["lm_head.weight"] = tensors.at("model.embed_tokens.weight").clone();
  });
  write_file_atomically(folder.path() / "copy/tokenizer.json", "{}");
  write_file_atomically(folder.path() / "copy/trainer.json", "{}");
  const auto report =
      convert_checkpoint({.model = folder.path() / "copy", .output = folder.path() / "once"}, families());
  EXPECT_THAT(report.left_out, ElementsAre("lm_head.weight"));
  EXPECT_THAT(report.companions, ElementsAre("config.json", "tokenizer.json"));
  EXPECT_FALSE(fs::exists(folder.path() / "once/trainer.json"));
  EXPECT_EQ(
      read_file(folder.path() / "once/model.safetensors"),
      read_file(kReferences / "qwen3_tied_v4config/model.safetensors"));
}

TEST(Convert, RefusesAnExistingFolderAndLeavesNothingBehind) {
  const Folder folder;
  const fs::path original = kReferences / "qwen3_seqcls";
  EXPECT_THAT(
      error_of([&] { convert_checkpoint({.model = original, .output = folder.path()}, families()); }),
      HasSubstr("already exists; choose another folder"));
  EXPECT_THAT(
      error_of([&] { convert_checkpoint({.model = original, .output = folder.path() / "no/such"}, families()); }),
      HasSubstr("/no: no such folder; create it first"));
  write_changed(folder.path() / "mixed", "qwen3moe_sparse_step2", [](auto& tensors) {
    at::Tensor& one = tensors.at("model.layers.1.mlp.experts.5.up_proj.weight");
    one = one.to(at::kBFloat16);
  });
  EXPECT_THAT(
      error_of([&] {
        convert_checkpoint(
            {.model = folder.path() / "mixed", .output = folder.path() / "out", .layout = ExpertLayout::fused},
            families());
      }),
      HasSubstr("model.layers.1.mlp.experts.5.up_proj.weight (BF16 [12, 24]): stack 0: does not match"));
  size_t entries = 0;
  for ([[maybe_unused]] const auto& entry : fs::directory_iterator(folder.path())) {
    ++entries;
  }
  EXPECT_EQ(entries, 1) << "the folder \"mixed\" alone";
  // With one dtype for all tensors it succeeds.
  const auto report = convert_checkpoint(
      {.model = folder.path() / "mixed",
       .output = folder.path() / "out",
       .layout = ExpertLayout::fused,
       .dtype = at::kFloat},
      families());
  EXPECT_GT(report.num_tensors, 0);
}

TEST(WeightsFingerprint, OfQuantizedWeightsIsThatOfThePlainOnesThatTheyStandFor) {
  const state::WeightReader quantized(fs::path(LEHR_SOURCE_DIR) / "test/data/state/quantized");
  state::NamedTensors tensors;
  for (const std::string& name : quantized.names()) {
    tensors.emplace_back(name, quantized.tensor(name).contiguous());
  }
  const Folder folder;
  const auto written = [&](const char* name) {
    fs::create_directories(folder.path() / name);
    state::save_safetensors(folder.path() / name / "model.safetensors", tensors);
    return weights_fingerprint(state::WeightReader(folder.path() / name));
  };
  EXPECT_EQ(written("plain"), weights_fingerprint(quantized));
  tensors.back().second = tensors.back().second + 1;
  EXPECT_NE(written("other"), weights_fingerprint(quantized));
}

}  // namespace
}  // namespace lehr::pretrained
