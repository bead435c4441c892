// Multi-token prediction on one device: against the paper's equations written out in ATen, document by document and in
// float64; the tokens further ahead; folders; and what is refused.
#include <gmock/gmock.h>

#include "lehr/nn/head.h"
#include "lehr/pretrained/convert.h"
#include "lehr/pretrained/save_model.h"
#include "lehr/pretrained/weights.h"
#include "lehr/train/distillation.h"
#include "lehr/train/future_tokens.h"
#include "test/base/error_of.h"
#include "test/model/plain_decoder.h"
#include "test/shard/one_device.h"
#include "test/train/support.h"

namespace lehr::train {
namespace {

namespace fs = std::filesystem;
namespace plain = model::test;
using model::test::Weights;
using ::testing::HasSubstr;

constexpr double kCoef = 0.3;
const char* const kTable = "model.embed_tokens.token_embedding.default.weight";

struct Case {
  std::string name, model_type;
  int64_t modules = 1;
  bool tied = false;
};

const std::vector<Case> kCases{
    {"DeepseekV3", "deepseek_v3"},
    {"DeepseekV3OfTwoModules", "deepseek_v3", 2},
    {"Glm4Moe", "glm4_moe", 2},
    {"TiedGlm4Moe", "glm4_moe", 1, true},
    {"Qwen3Next", "qwen3_next"}};

std::vector<plain::LayerShape> layers_of(const std::string& model_type) {
  const int64_t heads = model_type == "deepseek_v3" ? 1 : 4;
  return {{model_type == "qwen3_next" ? 1 : heads, 8, 6, 2, 16}, {heads, 8, 6, 2, 16}};
}

std::unique_ptr<descriptor::ModelArgs> args_of(const Case& one, bool keeps = true) {
  Node config = parse_json(plain::config_json(one.model_type, layers_of(one.model_type), 0, one.tied), "config.json");
  config.set("num_nextn_predict_layers", Node(one.modules));
  auto args = plain::family_of(one.model_type).from_hf_config(config);
  args->keep_mtp_modules(keeps);
  args->check("config.json: ");
  return args;
}

std::shared_ptr<nn::Model> model_of(const Case& one, bool checkpointing = false) {
  auto model = args_of(one)->build({.checkpointing = checkpointing});
  shard::test::make_real(*model);
  return model;
}

/// A batch of two rows of 16 tokens: four documents, one of them of a single token; and a part of a document that
/// goes on after the row. Some labels are ignored, as those of a prompt are.
Batch packed_batch() {
  at::manual_seed(5);
  const at::Tensor ids = at::randint(plain::kVocabulary, {2, 16});
  const at::Tensor documents = at::cat(
      {at::tensor({0, 0, 0, 0, 0, 0, 0, 1, 2, 2, 3, 3, 3, 3, 3, 3}, at::kLong).unsqueeze(0),
       at::zeros({1, 16}, at::kLong)});
  const at::Tensor positions = at::cat(
      {at::tensor({0, 1, 2, 3, 4, 5, 6, 0, 0, 1, 0, 1, 2, 3, 4, 5}, at::kLong).unsqueeze(0),
       at::arange(16, at::kLong).unsqueeze(0)});
  at::Tensor labels = at::cat({ids.narrow(1, 1, 15), at::full({2, 1}, 7, at::kLong)}, 1);
  for (const int64_t last : {6, 7, 9, 15}) {
    labels[0][last] = nn::kIgnoreIndex;
  }
  for (const int64_t of_prompt : {0, 1, 5}) {
    labels[1][of_prompt] = nn::kIgnoreIndex;
  }
  return {{"input_ids", ids}, {"labels", labels}, {"position_ids", positions}, {"document_ids", documents}};
}

struct Span {
  int64_t row, begin, length;
};
const std::vector<Span> kDocuments{{0, 0, 7}, {0, 7, 1}, {0, 8, 2}, {0, 10, 6}, {1, 0, 16}};

at::Tensor nll_of(const at::Tensor& hidden, const at::Tensor& labels, Weights& w, bool tied) {
  const at::Tensor logps = at::log_softmax(plain::plain_logits(hidden, w, tied), -1);
  const at::Tensor found = logps.gather(-1, labels.clamp_min(0).unsqueeze(-1)).squeeze(-1);
  return -(found * labels.ne(nn::kIgnoreIndex)).sum();
}

/// The sums of the main loss and of each depth's loss, over the documents, each by itself.
std::vector<at::Tensor> plain_losses(const Case& one, const Batch& batch, Weights& w) {
  const auto layers = layers_of(one.model_type);
  // The layer of module k, under the name of a layer with full attention.
  const auto path = [](int64_t module) { return fmt::format("model.layers.{}.", 101 + 2 * module); };
  for (int64_t module = 0; module < one.modules; ++module) {
    const std::string prefix = fmt::format("mtp.{}.layer.", module);
    const Weights all = w;
    for (const auto& [name, weight] : all) {
      if (name.starts_with(prefix)) {
        w[path(module) + name.substr(prefix.size())] = weight;
      }
    }
  }
  const bool centered = plain::kind_of(one.model_type).zero_centered;
  std::vector<at::Tensor> losses(static_cast<size_t>(1 + one.modules), at::zeros({}, at::kDouble));
  for (const Span& span : kDocuments) {
    const at::Tensor ids = batch.at("input_ids").narrow(0, span.row, 1).narrow(1, span.begin, span.length);
    const at::Tensor labels = batch.at("labels").narrow(0, span.row, 1).narrow(1, span.begin, span.length);
    at::Tensor hidden = plain::plain_decoder(ids, w, layers, one.model_type);
    losses[0] = losses[0] + nll_of(hidden, labels, w, one.tied);
    for (int64_t k = 1; k <= one.modules && k < span.length; ++k) {
      const int64_t count = span.length - k;  // positions with a token k positions later
      const std::string own = fmt::format("mtp.{}.", k - 1);
      const at::Tensor later = w.at(kTable).index_select(0, ids.narrow(1, k, count).reshape(-1)).unsqueeze(0);
      at::Tensor x = plain::project(
          at::cat(
              {plain::norm(later, w.at(own + "enorm.weight"), centered),
               plain::norm(hidden.narrow(1, 0, count), w.at(own + "hnorm.weight"), centered)},
              -1),
          w.at(own + "eh_proj.weight"));
      x = x + plain::attention_branch(x, w, path(k - 1), layers.back(), one.model_type);
      x = x + plain::ffn_branch(x, w, path(k - 1), layers.back(), one.model_type);
      hidden = plain::norm(x, w.at(own + "norm.weight"), centered);
      losses[static_cast<size_t>(k)] =
          losses[static_cast<size_t>(k)] + nll_of(hidden, labels.narrow(1, k, count), w, one.tied);
    }
  }
  return losses;
}

// Sums of some dozens of terms in another order, through a layer more than the model: 1e-11 of the largest leaves room.
void expect_equal(const std::string& what, const at::Tensor& found, const at::Tensor& wanted) {
  ASSERT_TRUE(found.defined()) << what;
  ASSERT_TRUE(wanted.defined()) << what;
  const double scale = wanted.detach().abs().max().item<double>();
  EXPECT_GT(scale, 0) << what << ": zeros show nothing";
  EXPECT_LE((found - wanted).detach().abs().max().item<double>(), 1e-11 * scale) << what;
}

class MultiTokenPrediction : public ::testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(Families, MultiTokenPrediction, ::testing::ValuesIn(kCases), [](const auto& one) {
  return one.param.name;
});

TEST_P(MultiTokenPrediction, EqualsThePaperOnPackedDocuments) {
  const Case& one = GetParam();
  const CausalLMTask task(kCoef);
  for (const bool checkpointing : {false, true}) {
    const auto model = model_of(one, checkpointing);
    ASSERT_EQ(model->num_mtp_modules(), one.modules);
    Weights weights = plain::copies_of(*model);
    const Batch whole = packed_batch();
    const auto losses = plain_losses(one, whole, weights);
    at::Tensor ahead = at::zeros({}, at::kDouble);
    for (size_t k = 1; k < losses.size(); ++k) {
      ahead = ahead + losses[k] / one.modules;
    }
    (losses[0] + kCoef * ahead).backward();

    const Batch batch = with_future_tokens(whole, model->num_mtp_modules());
    const nn::ModelOutputs outputs = model->forward(task.build_forward_inputs(batch));
    const at::Tensor loss = task.compute_loss(outputs, batch);
    expect_equal("loss", loss, losses[0]);
    expect_equal("mtp_loss", task.compute_metrics(outputs, batch).at("mtp_loss"), ahead);
    loss.backward();
    for (const auto& [name, parameter] : nn::named_parameters(*model)) {
      if (!parameter->is_state()) {
        expect_equal(name, parameter->value().grad(), weights.at(name).grad());
      }
    }
  }
}

// A teacher's distribution replaces the labels of the main model's loss; the modules have theirs as without it.
TEST_P(MultiTokenPrediction, AddsItsGradientToThatOfATeacher) {
  const Case& one = GetParam();
  const auto model = model_of(one);
  const std::shared_ptr<nn::Model> teacher = args_of(one, /*keeps=*/false)->build({});
  shard::test::make_real(*teacher);
  for (const auto& [name, parameter] : nn::named_parameters(*teacher)) {
    const at::NoGradGuard no_grad;
    at::Tensor value = parameter->value();
    value.mul_(1.1);
  }
  const Batch whole = packed_batch(), batch = with_future_tokens(whole, model->num_mtp_modules());
  DistillationConfig config;
  config.loss_weight = 0.3;
  const auto run = [&](const TrainTask& task, const Batch& of_run) {
    nn::ModelInputs inputs = task.build_forward_inputs(of_run);
    if (TeacherStage* stage = task.teacher_of_stage(0)) {
      stage->run(inputs, {}, {});
    }
    const at::Tensor loss = task.compute_loss(model->forward(inputs), of_run);
    loss.backward();
    std::map<std::string, at::Tensor> results{{"loss", loss.detach()}};
    for (const auto& [name, parameter] : nn::named_parameters(*model)) {
      // Modules that did not run have no gradient.
      if (!parameter->is_state() && parameter->value().grad().defined()) {
        results[name] = parameter->value().grad().clone();
        parameter->value().mutable_grad().reset();
      }
    }
    return results;
  };
  const CausalLMTask alone, ahead(kCoef);
  const auto all = run(DistillationTask(ahead, config, teacher), batch),
             distilled = run(DistillationTask(alone, config, teacher), batch);
  const auto with = run(ahead, batch), without = run(alone, batch);
  EXPECT_EQ(all.at("loss").item<double>(), distilled.at("loss").item<double>());
  for (const auto& [name, gradient] : all) {
    if (name != "loss") {
      expect_equal(name, gradient, distilled.at(name) + (with.at(name) - without.at(name)));
    }
  }
  for (const auto& [name, value] : run(DistillationTask(alone, config, teacher), whole)) {
    expect_equal(name, distilled.at(name), value);
  }
}

TEST_P(MultiTokenPrediction, IsLeftOutOfAForwardWithoutTheTokens) {
  const auto model = model_of(GetParam());
  const CausalLMTask task(kCoef);
  const nn::ModelOutputs outputs = model->forward(task.build_forward_inputs(packed_batch()));
  EXPECT_FALSE(outputs.future_nll.defined());
  EXPECT_TRUE(task.compute_metrics(outputs, {}).empty());
  EXPECT_EQ(task.compute_loss(outputs, {}).item<double>(), outputs.nll().sum().item<double>());
}

TEST_P(MultiTokenPrediction, IsCountedWithTheHeadOncePerModule) {
  const Case& one = GetParam();
  const auto with = args_of(one)->get_nparams_and_flops(100), without = args_of(one, false)->get_nparams_and_flops(100);
  const auto model = model_of(one);
  int64_t own = 0, idle = 0;
  for (const auto& [name, parameter] : nn::named_parameters(*model)) {
    own += name.starts_with("mtp.") && !parameter->is_state() ? parameter->numel() : 0;
  }
  for (const auto* moe_layer : nn::moe_layers(*model)) {
    idle = moe_layer->num_idle_parameters();  // of one layer: all are alike
  }
  EXPECT_EQ(with.num_parameters - without.num_parameters, own);
  const int64_t head = plain::kVocabulary * plain::kHidden;
  const int64_t width = one.model_type == "deepseek_v3" ? plain::kPlainDim + plain::kHeadDim + plain::kValueDim
                                                        : 2 * plain::kHeadDim;  // of a query and a value
  EXPECT_EQ(
      with.flops_per_token - without.flops_per_token,
      6 * (own + one.modules * (head - idle)) + one.modules * 6 * plain::kHeads * width * 100);
  EXPECT_EQ(with.layer_flops_per_token, without.layer_flops_per_token);
  EXPECT_EQ(with.kv_cache_per_token, without.kv_cache_per_token);
}

TEST(FutureTokens, EndAtDocumentsAndSequences) {
  const auto rows = [](std::vector<int64_t> values) { return at::tensor(values, at::kLong).unsqueeze(0); };
  const int64_t none = nn::kIgnoreIndex;
  const Batch batch = with_future_tokens(
      {{"input_ids", rows({10, 11, 12, 13, 14, 15})},
       {"labels", rows({11, 12, none, 14, none, 16})},
       {"document_ids", rows({0, 0, 0, 1, 1, 1})}},
      2);
  EXPECT_TRUE(at::equal(batch.at("input_ids+1"), rows({11, 12, 13, 14, 15, 15})));
  EXPECT_TRUE(at::equal(batch.at("labels+1"), rows({12, none, none, none, 16, none})));
  EXPECT_TRUE(at::equal(batch.at("input_ids+2"), rows({12, 13, 14, 15, 15, 15})));
  EXPECT_TRUE(at::equal(batch.at("labels+2"), rows({none, none, none, 16, none, none})));
  const Batch one_document = with_future_tokens({{"input_ids", rows({1, 2, 3})}, {"labels", rows({2, 3, 4})}}, 1);
  EXPECT_TRUE(at::equal(one_document.at("labels+1"), rows({3, 4, none})));
  const Batch short_row = with_future_tokens({{"input_ids", rows({1})}, {"labels", rows({2})}}, 2);
  EXPECT_TRUE(at::equal(short_row.at("input_ids+2"), rows({1})));
  EXPECT_TRUE(at::equal(short_row.at("labels+2"), rows({none})));
}

// Folders.

// A folder of the model, with the published names.
fs::path saved(const Case& one, const nn::Model& model, const fs::path& folder) {
  pretrained::save_model(model, *args_of(one), {.output = folder, .dtype = at::kDouble});
  return folder;
}

TEST_P(MultiTokenPrediction, IsStoredUnderThePublishedNames) {
  const Case& one = GetParam();
  const testing::Folder folder;
  const auto model = model_of(one);
  const auto found = testing::tensors(saved(one, *model, folder.path() / "saved"), "model");
  const auto parameter = [&](const std::string& name) {
    for (const auto& [full, value] : nn::named_parameters(*model)) {
      if (full == name) {
        return value->value();
      }
    }
    return at::Tensor();
  };
  const bool own_module = one.model_type == "qwen3_next";
  for (int64_t module = 0; module < one.modules; ++module) {
    const std::string layer = own_module ? "mtp.layers.0." : fmt::format("model.layers.{}.", 2 + module);
    const std::string ours = fmt::format("mtp.{}.", module), beside = own_module ? "mtp." : layer;
    const std::vector<std::pair<std::string, std::string>> names{
        {beside + (own_module ? "pre_fc_norm_embedding.weight" : "enorm.weight"), ours + "enorm.weight"},
        {beside + (own_module ? "pre_fc_norm_hidden.weight" : "hnorm.weight"), ours + "hnorm.weight"},
        {beside + (own_module ? "fc.weight" : "eh_proj.weight"), ours + "eh_proj.weight"},
        {beside + (own_module ? "norm.weight" : "shared_head.norm.weight"), ours + "norm.weight"},
        {layer + "self_attn.o_proj.weight", ours + "layer.self_attn.o_proj.weight"},
        {layer + "mlp.gate.weight", ours + "layer.mlp.router.gate.weight"}};
    for (const auto& [stored, name] : names) {
      ASSERT_TRUE(found.contains(stored)) << stored;
      EXPECT_TRUE(at::equal(found.at(stored), parameter(name))) << stored;
    }
    EXPECT_TRUE(found.contains(layer + "mlp.experts.5.up_proj.weight"));
    EXPECT_EQ(found.contains(layer + "embed_tokens.weight"), !own_module);
    if (!own_module) {
      const char* head = one.tied ? kTable : "lm_head.lm_head.default.weight";
      EXPECT_TRUE(at::equal(found.at(layer + "embed_tokens.weight"), parameter(kTable)));
      EXPECT_TRUE(at::equal(found.at(layer + "shared_head.head.weight"), parameter(head)));
    }
  }
  const Node config = parse_json_file(folder.path() / "saved/config.json");
  EXPECT_EQ(config.at("num_nextn_predict_layers").as_int(), one.modules);
}

TEST_P(MultiTokenPrediction, IsKeptByConvertAndLeftOutByOtherCommands) {
  const Case& one = GetParam();
  const testing::Folder folder;
  const auto model = model_of(one);
  const fs::path original = saved(one, *model, folder.path() / "saved");
  const auto families = testing::families();
  for (const auto layout : {descriptor::ExpertLayout::fused, descriptor::ExpertLayout::per_expert}) {
    const fs::path from = layout == descriptor::ExpertLayout::fused ? original : folder.path() / "fused";
    const fs::path to = folder.path() / (layout == descriptor::ExpertLayout::fused ? "fused" : "back");
    const auto report = pretrained::convert_checkpoint({.model = from, .output = to, .layout = layout}, families);
    EXPECT_THAT(report.left_out, ::testing::IsEmpty());
    EXPECT_EQ(read_file(to / "config.json"), read_file(original / "config.json"));
  }
  testing::expect_same_bits(testing::tensors(folder.path() / "back", "model"), testing::tensors(original, "model"));

  const auto opened = pretrained::ModelFolder::open(original, families);
  EXPECT_EQ(opened.args->num_mtp_modules(), 0);
  const auto without = opened.load(at::kCPU, at::kDouble);
  const at::Tensor ids = packed_batch().at("input_ids");
  EXPECT_TRUE(
      at::equal(without->forward({.input_ids = ids}).hidden_states, model->forward({.input_ids = ids}).hidden_states));
}

// Runs.

Overrides run_of(const std::string& name, Overrides more = {}) {
  Overrides overrides{
      {"model.name", name},
      {"model.args.num_attention_heads", "4"},
      {"model.args.num_key_value_heads", name == "deepseek_v3" ? "4" : "2"},
      {"model.args.head_dim", name == "deepseek_v3" ? "16" : "8"},
      {"model.args.num_hidden_layers", name.starts_with("qwen3_") ? "4" : "2"},
      {"model.args.num_experts", "8"},
      {"model.args.num_experts_per_tok", "2"},
      {"model.args.moe_intermediate_size", "8"},
      {"training.steps", "4"},
      {"training.mtp_loss_coef", "0.3"},
      {"optimizer.lr", "0.01"},
      {"data.datasets.0.split_documents", "\"blank_line\""}};
  return testing::joined(overrides, more);
}

TEST(MultiTokenPredictionRun, LearnsAndSavesModulesThatTheNextRunLoads) {
  for (const std::string name : {"deepseek_v3", "glm4_moe", "qwen3_next", "qwen3_5_moe"}) {
    SCOPED_TRACE(name);
    const testing::Folder first, second, third;
    const auto config = testing::tiny_run(first.path(), run_of(name, {{"training.steps", "12"}}));
    testing::train(config);
    const auto losses = testing::curve(config, "mtp_loss");
    ASSERT_EQ(losses.size(), 12U);
    EXPECT_LT(losses.back(), losses.front() - 0.1);

    const fs::path folder = testing::checkpoint(config, 12);
    const std::string from = "\"" + folder.string() + "\"";
    const Overrides loads{
        {"checkpoint.initial_load_path", from},
        {"optimizer.lr", "1e-40"},
        {"training.load_balance_coeff", "0"},
        {"training.steps", "1"},
        {"lr_scheduler.warmup_steps", "0"}};
    const auto again = testing::tiny_run(second.path(), run_of(name, loads));
    testing::train(again);
    testing::expect_same_bits(
        testing::tensors(testing::checkpoint(again, 1), "model"), testing::tensors(folder, "model"));

    // A run without the loss leaves the modules out, and one from its folder starts with new ones.
    Overrides without = run_of(name, loads);
    without.emplace_back("training.mtp_loss_coef", "0");
    const auto plain_run = testing::tiny_run(third.path(), without);
    testing::train(plain_run);
    const fs::path stripped = testing::checkpoint(plain_run, 1);
    EXPECT_TRUE(testing::curve(plain_run, "mtp_loss").empty());
    for (const auto& [tensor, value] : testing::tensors(stripped, "model")) {
      EXPECT_THAT(tensor, ::testing::Not(::testing::AnyOf(HasSubstr("eh_proj"), ::testing::StartsWith("mtp."))));
    }
    const Node config_json = parse_json_file(stripped / "config.json");
    const Node* modules = config_json.find("num_nextn_predict_layers");
    EXPECT_EQ(modules == nullptr ? 0 : modules->as_int(), 0);
    const testing::Folder fourth;
    Overrides fresh = run_of(name, loads);
    fresh.emplace_back("checkpoint.initial_load_path", "\"" + stripped.string() + "\"");
    const auto restarted = testing::tiny_run(fourth.path(), fresh);
    testing::train(restarted);
    EXPECT_EQ(
        testing::tensors(testing::checkpoint(restarted, 1), "model").size(), testing::tensors(folder, "model").size());
  }
}

// As in folders of Qwen3-Next, and of others whose config.json has no more than transformers needs.
TEST(MultiTokenPredictionRun, ContinuesFromAConfigWithoutTheirNumber) {
  for (const std::string name : {"deepseek_v3", "qwen3_next"}) {
    for (const std::string coefficient : {"0", "0.3"}) {
      SCOPED_TRACE(name + ", mtp_loss_coef " + coefficient);
      const testing::Folder source, never, twice;
      const auto first =
          testing::tiny_run(source.path(), run_of(name, {{"training.steps", "1"}, {"lr_scheduler.warmup_steps", "0"}}));
      testing::train(first);
      Node config = parse_json_file(testing::checkpoint(first, 1) / "config.json");
      config.erase("num_nextn_predict_layers");
      write_file_atomically(source.path() / "config.json", to_json(config));
      const auto run_in = [&](const fs::path& folder, const std::string& coefficient_of_run) {
        TrainConfig run =
            testing::tiny_run(folder, {{"training.steps", "4"}, {"training.mtp_loss_coef", coefficient_of_run}});
        run.model = {};
        run.model.hf_assets_path = (source.path() / "config.json").string();
        return run;
      };
      const auto whole = run_in(never.path(), coefficient), stopped = run_in(twice.path(), coefficient);
      testing::train(whole);
      testing::train(stopped, 2);
      // The modules are a part of the model, which does not change in a run.
      EXPECT_THAT(
          error_of([&] { testing::train(run_in(twice.path(), coefficient == "0" ? "0.3" : "0")); }),
          HasSubstr(
              "num_nextn_predict_layers = " + std::string(coefficient == "0" ? "0, now 1" : "1, now 0") +
              " (training.mtp_loss_coef)"));
      testing::train(stopped);
      for (const char* file : {"config.json", "model.safetensors"}) {
        EXPECT_EQ(read_file(testing::checkpoint(whole, 4) / file), read_file(testing::checkpoint(stopped, 4) / file))
            << file;
      }
    }
  }
}

std::string problem_of(const Overrides& overrides) {
  const testing::Folder folder;
  return error_of([&] {
    const TrainConfig config = testing::tiny_run(folder.path(), overrides);
    const auto list = testing::specs();
    const auto tokenizer = build_tokenizer(config);
    build_model_args(config, list.at(config.model).family, *tokenizer);
  });
}

TEST(MultiTokenPredictionRun, IsRefusedByNameWhereItCannotBe) {
  EXPECT_EQ(problem_of(run_of("deepseek_v3", {{"model.args.num_nextn_predict_layers", "2"}})), "no error");
  EXPECT_THAT(
      problem_of({{"training.mtp_loss_coef", "0.1"}}),
      HasSubstr("training.mtp_loss_coef: the model has no modules for multi-token prediction: families that have them "
                "are deepseek_v3, glm4_moe, qwen3_next, qwen3_5 and qwen3_5_moe; set it to 0"));
  EXPECT_THAT(
      problem_of(run_of("deepseek_v3", {{"model.args.num_nextn_predict_layers", "0"}})),
      HasSubstr("num_nextn_predict_layers of its config.json, or of model.args, is 0; set it to 0"));
  EXPECT_THAT(
      problem_of(run_of("qwen3_next", {{"model.args.num_nextn_predict_layers", "2"}})),
      HasSubstr("num_nextn_predict_layers: expected 0 to 1, the modules for multi-token prediction that checkpoints of "
                "this model type have names for, found 2"));
  EXPECT_THAT(
      problem_of(
          run_of("deepseek_v3", {{"model.args.num_nextn_predict_layers", "1"}, {"training.mtp_loss_coef", "0"}})),
      HasSubstr("model.args.num_nextn_predict_layers: modules for multi-token prediction are left out unless they are "
                "trained; set training.mtp_loss_coef above 0"));
  EXPECT_THAT(
      problem_of(run_of("glm4_moe", {{"training.task", "classification"}})),
      HasSubstr(
          "training.mtp_loss_coef: modules for multi-token prediction score tokens by a language model's head, but "
          "training.task is \"classification\"; set it to 0"));
  EXPECT_THAT(
      problem_of(run_of("glm4_moe", {{"peft.method", "lora"}, {"peft.target_pattern", "'.*_proj'"}})),
      HasSubstr(
          "training.mtp_loss_coef: peft's format has no names for adapters of modules for multi-token prediction"));
  const auto args = plain::args_of("glm4_moe", plain::kSharedMixtures);
  args->keep_mtp_modules(true);
  EXPECT_THAT(
      error_of([&] { args->check(""); }),
      HasSubstr(
          "block_configs: modules for multi-token prediction have the layer of a model whose layers are all alike"));
}

}  // namespace
}  // namespace lehr::train
