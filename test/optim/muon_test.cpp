// Muon, compared with a plain float64 definition and with torch.optim.Muon; the parameters that it leaves to AdamW.
#include "lehr/optim/muon.h"

#include <ATen/ops/linalg_qr.h>
#include <ATen/record_function.h>
#include <gmock/gmock.h>

#include <set>

#include "lehr/ops/cuda.h"
#include "lehr/optim/clip.h"
#include "test/ops/host_launch.h"
#include "test/optim/support.h"

namespace lehr::optim {
namespace {
using namespace testing_support;
using ::testing::HasSubstr;

using Matrix = std::vector<std::vector<double>>;

Matrix times(const Matrix& a, const Matrix& b) {
  Matrix product(a.size(), std::vector<double>(b[0].size()));
  for (size_t i = 0; i < a.size(); ++i) {
    for (size_t j = 0; j < b[0].size(); ++j) {
      for (size_t k = 0; k < b.size(); ++k) {
        product[i][j] += a[i][k] * b[k][j];
      }
    }
  }
  return product;
}

Matrix transposed(const Matrix& a) {
  Matrix t(a[0].size(), std::vector<double>(a.size()));
  for (size_t i = 0; i < a.size(); ++i) {
    for (size_t j = 0; j < a[0].size(); ++j) {
      t[j][i] = a[i][j];
    }
  }
  return t;
}

// X <- a X + b (X X^T) X + c (X X^T)^2 X, after division by the Frobenius norm.
Matrix newton_schulz(Matrix x) {
  double squares = 0;
  for (const auto& row : x) {
    for (const double value : row) {
      squares += value * value;
    }
  }
  for (auto& row : x) {
    for (double& value : row) {
      value /= std::sqrt(squares);
    }
  }
  for (int step = 0; step < 5; ++step) {
    const Matrix gram = times(x, transposed(x));
    const Matrix once = times(gram, x);
    const Matrix twice = times(gram, once);
    for (size_t i = 0; i < x.size(); ++i) {
      for (size_t j = 0; j < x[0].size(); ++j) {
        x[i][j] = 3.4445 * x[i][j] - 4.7750 * once[i][j] + 2.0315 * twice[i][j];
      }
    }
  }
  return x;
}

at::Tensor matrix_values(int64_t rows, int64_t columns, at::ScalarType dtype) {
  return ((at::arange(rows * columns, at::kDouble) - 11) / 8).view({rows, columns}).to(dtype);
}

at::Tensor matrix_grads(int64_t rows, int64_t columns, int64_t t, at::ScalarType dtype) {
  const auto i = at::arange(rows * columns, at::kLong);
  return (((i * 7 + t * 5).remainder(11) - 5).to(at::kDouble) / 16).view({rows, columns}).to(dtype);
}

OptimizerConfig muon_config(MuonScale scale) {
  OptimizerConfig config{.name = OptimizerKind::muon, .lr = 0.05, .weight_decay = 0.1, .muon_scale = scale};
  config.momentum = 0.9;
  return config;
}

TEST(Muon, EqualsAPlainDefinitionInFloat64) {
  for (const auto& [rows, columns] : {std::pair(4, 6), std::pair(6, 4)}) {
    for (const auto scale : {MuonScale::original, MuonScale::match_rms_adamw}) {
      Muon muon(muon_config(scale), {{.name = "w", .shape = {rows, columns}}});
      const at::Tensor w = matrix_values(rows, columns, at::kDouble);
      at::Tensor expected = w.clone();
      at::Tensor momentum = at::zeros_like(w);
      for (int64_t t = 0; t < 4; ++t) {
        const auto raw = matrix_grads(rows, columns, t, at::kDouble);
        const auto divisor = clip_divisor(global_norm({raw}), 0.5);
        muon.step({{"w", w, raw.clone()}}, {.lr_factor = 0.5, .grad_divisor = divisor});
        const auto g = raw / divisor;
        momentum = 0.9 * momentum + 0.1 * g;
        const at::Tensor direction = 0.9 * momentum + 0.1 * g;
        Matrix x(static_cast<size_t>(rows), std::vector<double>(static_cast<size_t>(columns)));
        for (int64_t i = 0; i < rows * columns; ++i) {
          x[static_cast<size_t>(i / columns)][static_cast<size_t>(i % columns)] = direction.data_ptr<double>()[i];
        }
        x = newton_schulz(x);
        const double factor = scale == MuonScale::original ? std::sqrt(std::max(1.0, double(rows) / columns))
                                                           : 0.2 * std::sqrt(double(std::max(rows, columns)));
        expected *= 1 - 0.025 * 0.1;
        for (int64_t i = 0; i < rows * columns; ++i) {
          expected.data_ptr<double>()[i] -=
              0.025 * factor * x[static_cast<size_t>(i / columns)][static_cast<size_t>(i % columns)];
        }
      }
      // The iteration amplifies small singular values by up to 3.4^5, and roundings of 1e-16 with them.
      EXPECT_LT((w - expected).abs().max().item<double>(), 1e-12);
    }
  }
}

// Expected: torch.optim.Muon of torch 2.11 after three steps, lr 0.05, momentum 0.9. It iterates in bfloat16, whose
// 2^-8 causes an error of some percent of the elements of a step: three steps of at most 0.05 * 0.6.
TEST(Muon, EqualsTorchWithinBFloat16Precision) {
  const auto expect = [](int64_t rows, int64_t columns, MuonScale scale, const std::vector<double>& golden) {
    Muon muon(muon_config(scale), {{.name = "w", .shape = {rows, columns}}});
    const at::Tensor w = matrix_values(rows, columns, at::kFloat);
    for (int64_t t = 0; t < 3; ++t) {
      muon.step({{"w", w, matrix_grads(rows, columns, t, at::kFloat)}});
    }
    const auto expected = at::tensor(golden, at::kDouble).view({rows, columns});
    const auto moved = (expected - matrix_values(rows, columns, at::kDouble)).abs().max().item<double>();
    EXPECT_GT(moved, 0.04);  // ten times the tolerance
    EXPECT_LT((w.to(at::kDouble) - expected).abs().max().item<double>(), 4e-3);
    EXPECT_NEAR(entry(muon, "w.momentum_buffer")[0][0].item<double>(), 0.005937, 1e-6);
    EXPECT_NEAR(entry(muon, "w.momentum_buffer")[0][3].item<double>(), 0.044688, 1e-6);
  };
  expect(4, 6, MuonScale::original, {-1.32162, -1.22564, -1.11684, -1.07175, -0.8157, -0.69152, -0.66038, -0.52215,
                                     -0.31671, -0.27438, -0.1199,  0.01311,  0.11077, 0.25593,  0.30932,  0.51419,
                                     0.66978,  0.70565,  0.83007,  1.06257,  1.09982, 1.225,    1.38236,  1.4992});
  expect(6, 4, MuonScale::match_rms_adamw, {-1.33662, -1.22965, -1.11037, -1.01753, -0.83326, -0.71378,
                                            -0.63023, -0.51034, -0.33436, -0.24827, -0.12971, 0.005,
                                            0.13014,  0.24146,  0.33741,  0.49893,  0.62462,  0.70662,
                                            0.84121,  1.00735,  1.09631,  1.21693,  1.35842,  1.48189});
}

// Keller Jordan's coefficients trade accuracy for speed: singular values end between about 0.68 and 1.21.
TEST(Orthogonalize, BringsSingularValuesNearOneAndKeepsSingularVectors) {
  const auto u = std::get<0>(at::linalg_qr(matrix_grads(8, 8, 1, at::kDouble) + 2 * at::eye(8, at::kDouble)));
  const auto s = at::logspace(0, -2, 8, 10, at::kDouble);
  const auto x = at::matmul(u * s, u.t());
  const auto diagonal = at::matmul(at::matmul(u.t(), orthogonalize(x, 5)), u);
  EXPECT_LT((diagonal - at::diag(diagonal.diagonal())).abs().max().item<double>(), 1e-12);
  EXPECT_GT(
      diagonal.diagonal().min().item<double>(),
      0.3);  // five steps do not fully converge from a singular value of 0.01 of the norm
  EXPECT_LT(diagonal.diagonal().max().item<double>(), 1.25);
  const auto more = at::matmul(at::matmul(u.t(), orthogonalize(x, 8)), u);
  EXPECT_GT(more.diagonal().min().item<double>(), 0.65);
}

TEST(Orthogonalize, KeepsZeros) {
  EXPECT_EQ(orthogonalize(at::zeros({3, 5}), 5).abs().max().item<double>(), 0.0);
}

TEST(Muon, OrthogonalizesEachExpertSeparately) {
  const auto config = muon_config(MuonScale::original);
  Muon batched(config, {{.name = "experts", .shape = {2, 6, 4}}});
  Muon single(config, {{.name = "0", .shape = {6, 4}}, {.name = "1", .shape = {6, 4}}});
  const auto first = matrix_values(6, 4, at::kDouble);
  const auto second = first.clone() * -0.5;
  const auto both = at::stack({first, second});
  for (int64_t t = 0; t < 3; ++t) {
    const auto a = matrix_grads(6, 4, t, at::kDouble);
    const auto b = matrix_grads(6, 4, t + 1, at::kDouble) * 100;
    batched.step({{"experts", both, at::stack({a, b})}});
    single.step({{"0", first, a}, {"1", second, b}});
  }
  EXPECT_LT((both[0] - first).abs().max().item<double>(), 1e-13);
  EXPECT_LT((both[1] - second).abs().max().item<double>(), 1e-13);
}

const std::vector<ParameterInfo> kModel{
    {.name = "model.embed_tokens.default.weight", .shape = {8, 4}},
    {.name = "model.layers.0.mlp.up_proj.weight", .shape = {6, 4}},
    {.name = "model.layers.0.input_layernorm.weight", .shape = {4}},
    {.name = "model.layers.0.q_proj.bias", .shape = {4}},
    {.name = "lm_head.default.weight", .shape = {8, 4}}};

std::vector<NamedParameter> parameters_of(const std::vector<ParameterInfo>& model, bool with_grads) {
  std::vector<NamedParameter> parameters;
  for (const auto& [name, shape] : model) {
    parameters.push_back({name, at::ones(shape), with_grads ? at::full(shape, 0.5) : at::Tensor()});
  }
  return parameters;
}

TEST(Muon, LeavesEmbeddingsHeadsNormsAndBiasesToAdamW) {
  OptimizerConfig config = muon_config(MuonScale::match_rms_adamw);
  config.param_groups = {{.pattern = "norm", .weight_decay = 0.0}, {.pattern = "lm_head", .lr_multiplier = 0.5}};
  Muon muon(config, kModel);
  AdamW adamw(config, {kModel[0].name, kModel[1].name, kModel[2].name, kModel[3].name, kModel[4].name});
  auto a = parameters_of(kModel, true);
  const auto b = parameters_of(kModel, true);
  muon.step(a, {.lr_factor = 0.5});
  adamw.step(b, {.lr_factor = 0.5});
  std::set<std::string> orthogonal;
  for (const auto& [name, tensor] : muon.state()) {
    if (name.ends_with(".momentum_buffer")) {
      orthogonal.insert(name);
    }
  }
  EXPECT_THAT(orthogonal, ::testing::ElementsAre("model.layers.0.mlp.up_proj.weight.momentum_buffer"));
  for (const size_t i : {0, 2, 3, 4}) {
    EXPECT_TRUE(at::equal(a[i].value, b[i].value)) << a[i].name;
  }
  EXPECT_FALSE(at::equal(a[1].value, b[1].value));
}

// A filter (channels, 1, width) is no list of matrices, as experts are: each channel would get a step of its own
// length.
TEST(Muon, LeavesConvolutionsToAdamW) {
  const std::string conv = "model.layers.0.linear_attn.conv1d.query";
  Muon muon(
      muon_config(MuonScale::match_rms_adamw),
      {{.name = conv, .shape = {6, 1, 4}}, {.name = "experts.up_proj.weight", .shape = {2, 6, 4}}});
  muon.step(
      {{conv, at::ones({6, 1, 4}), at::ones({6, 1, 4})},
       {"experts.up_proj.weight", at::ones({2, 6, 4}), at::ones({2, 6, 4})}});
  std::vector<std::string> names;
  for (const auto& [name, tensor] : muon.state()) {
    names.push_back(name);
  }
  EXPECT_THAT(names, ::testing::Contains(conv + ".exp_avg"));
  EXPECT_THAT(names, ::testing::Contains("experts.up_proj.weight.momentum_buffer"));
  EXPECT_THAT(names, ::testing::Not(::testing::Contains(conv + ".momentum_buffer")));
}

TEST(Muon, ResumesBitForBit) {
  for (const auto dtype : {at::kFloat, at::kDouble, at::kBFloat16}) {
    const std::vector<ParameterInfo> model{{.name = "w", .shape = {6, 4}}, {.name = "norm", .shape = {37}}};
    const auto config = muon_config(MuonScale::match_rms_adamw);
    const auto steps = [&](Muon& muon, const at::Tensor& w, const at::Tensor& norm, int64_t first, int64_t last) {
      for (int64_t t = first; t < last; ++t) {
        muon.step({{"w", w, matrix_grads(6, 4, t, dtype)}, {"norm", norm, grads(t, dtype)}});
      }
    };
    Muon whole(config, model);
    const auto w = matrix_values(6, 4, dtype), norm = values(dtype);
    steps(whole, w, norm, 0, 6);
    const auto w2 = matrix_values(6, 4, dtype), norm2 = values(dtype);
    Muon first(config, model);
    steps(first, w2, norm2, 0, 2);
    Muon second(config, model);
    second.allocate({{"w", w2, {}}, {"norm", norm2, {}}});
    second.load_state(saved_state(first));
    steps(second, w2, norm2, 2, 6);
    EXPECT_TRUE(at::equal(w, w2));
    EXPECT_TRUE(at::equal(norm, norm2));
    EXPECT_EQ(saved_state(whole).size(), saved_state(second).size());
  }
}

TEST(Muon, RefusesParametersAndShardsThatAreNotWholeMatrices) {
  const auto config = muon_config(MuonScale::original);
  EXPECT_THAT(error_of([&] { Muon(config, {{.name = "norm", .shape = {4}}}); }), HasSubstr("leaves muon no matrix"));
  Muon muon(config, {{.name = "w", .shape = {6, 4}}, {.name = "experts", .shape = {2, 6, 4}}});
  const auto half = at::ones({3, 4});
  const NamedParameter shard{"w", half, half.clone(), {.shape = {6, 4}, .offset = {3, 0}}};
  EXPECT_THAT(
      error_of([&] { muon.step({shard}); }),
      HasSubstr("w: muon needs whole matrices, found Float [3, 4] on cpu as a part of [6, 4]"));
  const auto expert = at::ones({1, 6, 4});
  muon.step({{"experts", expert, expert.clone(), {.shape = {2, 6, 4}, .offset = {1, 0, 0}}}});
  EXPECT_FALSE(at::equal(expert, at::ones({1, 6, 4})));
  EXPECT_THAT(error_of([&] { muon.step({{"other", half, half}}); }), HasSubstr("other: the optimizer was not built"));
}

// With and without batches of matrices, as on a GPU.
TEST(Muon, FoundInfOnTheDeviceSkipsTheStep) {
  const std::vector<ParameterInfo> infos{
      {.name = "a", .shape = {4, 6}}, {.name = "b", .shape = {4, 6}}, {.name = "norm", .shape = {6}}};
  for (const bool batched : {false, true}) {
    for (const auto dtype : {at::kFloat, at::kBFloat16, at::kDouble}) {
      std::optional<ops::cuda::TableScope> gpu;
      if (batched) {
        gpu.emplace(ops::test::host_table(), at::kCPU);
      }
      at::manual_seed(4);
      Muon muon(muon_config(MuonScale::original), infos);
      ASSERT_TRUE(muon.takes_found_inf());
      std::vector<NamedParameter> parameters;
      for (const auto& info : infos) {
        parameters.push_back({.name = info.name, .value = at::randn(info.shape, dtype)});
      }
      const auto step = [&](bool bad) {
        for (NamedParameter& parameter : parameters) {
          parameter.grad = bad ? at::full_like(parameter.value, std::nan("")) : at::randn_like(parameter.value);
        }
        muon.step(parameters, {.grad_divisor = at::full({}, 2.0), .found_inf = at::full({}, bad ? 1.0F : 0.0F)});
        std::vector<at::Tensor> now;
        for (const NamedParameter& parameter : parameters) {
          now.push_back(parameter.value.clone());
        }
        for (const auto& [name, tensor] : muon.state()) {
          now.push_back(tensor.clone());
        }
        return now;
      };
      const auto before = step(false), left_out = step(true), after = step(false);
      for (size_t i = 0; i < before.size(); ++i) {
        EXPECT_TRUE(at::equal(left_out[i], before[i])) << i << " " << dtype;
        EXPECT_FALSE(at::equal(after[i], before[i])) << i << " " << dtype;
      }
    }
  }
}

// As on a GPU, where matrices of one shape are batched.
TEST(Muon, BatchedStepsEqualTheStepsOfEachMatrix) {
  const std::vector<std::vector<int64_t>> shapes = {{4, 6}, {6, 4}, {4, 6}, {3, 4, 6}, {6, 4}, {4, 6}, {5, 5}};
  std::vector<ParameterInfo> infos;
  for (size_t i = 0; i < shapes.size(); ++i) {
    infos.push_back({.name = "w" + std::to_string(i), .shape = shapes[i]});
  }
  const auto run = [&] {
    at::manual_seed(4);
    Muon muon(muon_config(MuonScale::original), infos);
    std::vector<NamedParameter> parameters;
    for (const auto& info : infos) {
      parameters.push_back({.name = info.name, .value = at::randn(info.shape, at::kDouble)});
    }
    for (int64_t t = 0; t < 3; ++t) {
      for (NamedParameter& parameter : parameters) {
        parameter.grad = at::randn(parameter.value.sizes(), at::kDouble);
      }
      muon.step(parameters);
    }
    return parameters;
  };
  thread_local int norms = 0;  // one per orthogonalization
  const auto counter = at::addThreadLocalCallback(
      at::RecordFunctionCallback([](const at::RecordFunction& function) -> std::unique_ptr<at::ObserverContext> {
        norms += std::string(function.name()) == "aten::linalg_vector_norm" ? 1 : 0;
        return nullptr;
      }));
  const auto alone = run();
  EXPECT_EQ(norms, 3 * 7);
  norms = 0;
  const ops::cuda::TableScope gpu(ops::test::host_table(), at::kCPU);
  const auto together = run();
  EXPECT_EQ(norms, 3 * 3);
  at::removeCallback(counter);
  for (size_t i = 0; i < alone.size(); ++i) {
    EXPECT_LT((alone[i].value - together[i].value).abs().max().item<double>(), 1e-12) << i;  // as above
  }
}

}  // namespace
}  // namespace lehr::optim
