// Checks the tree against its architecture: the dependencies between folders that the root CMakeLists.txt states, and
// the rules for readable files.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "tree.h"

namespace {

using Folders = std::map<std::string, std::set<std::string>>;  // A folder, and the folders that it may use.

constexpr size_t kMaxLines = 400;

/// A source of the tree. `path` is relative to the root, with forward slashes.
struct Source {
  std::string path;
  std::vector<std::string> lines;

  bool is_header() const { return path.ends_with(".h"); }
  /// Tables that a script wrote: too long to read, and not meant to be read.
  bool is_generated() const { return path.ends_with("_tables.cpp"); }
  /// "nn" for "lehr/nn/linear.h".
  std::string folder() const {
    const size_t begin = path.find('/') + 1;
    return path.substr(begin, path.find('/', begin) - begin);
  }
};

/// All C++ and CUDA sources in the given folders of the root, sorted.
std::vector<Source> read_sources(const fs::path& root, const std::vector<std::string>& folders) {
  std::vector<Source> sources;
  for (const std::string& path : files_below(folders, {".h", ".cpp", ".cu"}, root)) {
    sources.push_back({.path = path, .lines = read_lines(root / path)});
  }
  return sources;
}

/// The dependencies that `lehr_library(name USES name...)` states.
Folders parse_folders(const std::string& cmake) {
  static const std::regex kLibrary(R"(lehr_library\(\s*([a-z_]+)([^)]*)\))");
  Folders folders;
  for (std::sregex_iterator match(cmake.begin(), cmake.end(), kLibrary), end; match != end; ++match) {
    std::istringstream words((*match)[2].str());
    std::set<std::string>& used = folders[(*match)[1].str()];
    for (std::string word; words >> word && word != "HEADERS";) {
      if (word != "USES") {
        used.insert(word);
      }
    }
  }
  return folders;
}

/// All folders that can be reached from `folder` over dependencies.
std::set<std::string> reachable(const Folders& folders, const std::string& folder) {
  std::set<std::string> seen;
  std::function<void(const std::string&)> visit = [&](const std::string& from) {
    const auto found = folders.find(from);
    if (found == folders.end()) {
      return;
    }
    for (const std::string& to : found->second) {
      if (seen.insert(to).second) {
        visit(to);
      }
    }
  };
  visit(folder);
  return seen;
}

/// The header that `#include "..."` or `#include <...>` names, empty for any other line.
std::string included(const std::string& line) {
  static const std::regex kInclude(R"(^\s*#\s*include\s*[<"]([^">]+)[">].*)");
  std::smatch match;
  return std::regex_match(line, match, kInclude) ? match[1].str() : "";
}

/// Every include of a folder of lehr/ that the dependencies do not allow, as "file:line: what to do".
std::vector<std::string> forbidden_includes(const Folders& folders, const std::vector<Source>& sources) {
  static const std::regex kFolder(R"(^lehr/([a-z_0-9]+)/.*)");
  std::vector<std::string> complaints;
  for (const Source& source : sources) {
    const auto allowed = folders.find(source.folder());
    for (size_t i = 0; i < source.lines.size(); ++i) {
      std::smatch match;
      const std::string header = included(source.lines[i]);
      if (!std::regex_match(header, match, kFolder) || match[1] == "base" || match[1] == source.folder()) {
        continue;
      }
      if (allowed == folders.end() || allowed->second.count(match[1]) == 0) {
        complaints.push_back(fmt::format(
            "{}:{}: includes {}, but {} may use {} only; pass an interface down instead, or change the arrow in "
            "CMakeLists.txt",
            source.path,
            i + 1,
            header,
            source.folder(),
            allowed == folders.end() || allowed->second.empty() ? "base"
                                                                : fmt::format("{}", fmt::join(allowed->second, ", "))));
      }
    }
  }
  return complaints;
}

/// Every include of a LibTorch header where it is not allowed. LibTorch's headers are included through
/// lehr/base/torch.h only; a .cpp or .cu file may add single ones.
std::vector<std::string> stray_torch_includes(const std::vector<Source>& sources) {
  static const std::regex kTorch(R"(^(torch|ATen|c10)/.*)");
  std::vector<std::string> complaints;
  for (const Source& source : sources) {
    if (!source.is_header() || source.path == "lehr/base/torch.h") {
      continue;
    }
    for (size_t i = 0; i < source.lines.size(); ++i) {
      const std::string header = included(source.lines[i]);
      if (std::regex_match(header, kTorch)) {
        complaints.push_back(fmt::format(
            "{}:{}: a header includes <{}>; include \"lehr/base/torch.h\", or move this to the .cpp file",
            source.path,
            i + 1,
            header));
      }
    }
  }
  return complaints;
}

/// Every file whose first line does not state its purpose (of a pair x.h and x.cpp, that of the header), and every
/// header without #pragma once.
std::vector<std::string> unmarked_files(const std::vector<Source>& sources) {
  std::set<std::string> headers;
  for (const Source& source : sources) {
    if (source.is_header()) {
      headers.insert(source.path);
    }
  }
  std::vector<std::string> complaints;
  for (const Source& source : sources) {
    const std::vector<std::string>& lines = source.lines;
    const std::string header = fs::path(source.path).replace_extension(".h").generic_string();
    const bool speaks_for_itself = source.is_header() || headers.count(header) == 0;
    if (speaks_for_itself && (lines.empty() || !lines[0].starts_with("// "))) {
      complaints.push_back(fmt::format("{}:1: the first line does not say what the file is for", source.path));
    }
    if (source.is_header() && std::find(lines.begin(), lines.end(), "#pragma once") == lines.end()) {
      complaints.push_back(fmt::format("{}:1: the header lacks #pragma once", source.path));
    }
  }
  return complaints;
}

std::vector<std::string> long_files(const std::vector<Source>& sources) {
  std::vector<std::string> complaints;
  for (const Source& source : sources) {
    if (!source.is_generated() && source.lines.size() > kMaxLines) {
      complaints.push_back(fmt::format(
          "{}:{}: {} lines, at most {}; a file holds one idea",
          source.path,
          kMaxLines + 1,
          source.lines.size(),
          kMaxLines));
    }
  }
  return complaints;
}

/// Every operator of lehr/ops/ without an OperatorScope of its name, and every backward of lehr/ without a scope:
/// `lehr train --profile` could not attribute their time.
std::vector<std::string> operators_without_kind(const std::vector<Source>& sources) {
  // Functions that only operators call, or that are composed of functions with scopes.
  static const std::set<std::string> kParts = {
      "product",
      "put_product",
      "few_rows",
      "rows_of",
      "loss_rows",
      "check_linear",
      "recomputable_matmul",
      "can_recompute",
      "without_recomputation",
      "add_product_",
      "gemm",
      "gemm_",
      "multiply_by_blocks",
      "gemm_takes",
      "gemm_fills",
      "rows_that_count",
      "select_rows",
      "for_delta_parts",
      "all_rows",
      "loss_rows",
      "over_chunks",
      "save_unit_gradients",
      "scaled_unit_gradients",
      "records_cuda_graphs",
      "make_cuda_recorder",
      "spread",
      "chunk_rows",
      "check_labels",
      "weight_gradient",
      "note_weight_gradients",
      "recomputable",
      "recomputable_in_parts",
      "save_or_recompute",
      "save_operand",
      "start_recomputing",
      "saved_or_recomputed",
      "flash_attention_on_meta",
      "causal_attention_flops",
      "sequence_ends",
      "row_mask",
      "without_first_keys",
      "register_peak_per_thread",
      "chosen_arch",
      "fastest_arch",
      "parse_arch",
      "restrict_cpu_libraries",
      "describe_kernels",
      "cumulative_lengths_of",
      "cumulative_lengths_of_rows",
      "with_cumulative_lengths",
      "without_hidden_queries",
      "flash_takes",
      "efficient_takes",
      "report_sequences",
      "padded_heads",
      "cut_heads",
      "variable_length_attention",
      "empty_attention_part",
      "merge",
      "cross_entropy_",
      "default_scale",
      "to_float8",
      "largest_of_rows",
      "values_of",
      "with_sinks",
      "sinks_gradient",
      "check_attention_options",
      "require_float8",
      "require_grouped_float8",
      "global_norm",
      "scale_",
      "grouped_linear_reference",
      "grouped_linear_by"};
  // Backward functions that compute nothing themselves: they send, wait, or run functions with scopes of their own.
  static const std::set<std::string> kGlue = {
      "Flash",
      "Identity",
      "Attach",
      "Checkpoint",
      "Collective",
      "AllToAll",
      "SequenceGather",
      "StartDispatch",
      "EndDispatch",
      "StartCombine",
      "EndCombine",
      "Begin",
      "BeginFrozen",
      "End"};
  static const std::regex kDeclared(R"(^[A-Za-z][A-Za-z_:<>, ]* ([a-z_0-9]+)\()");
  static const std::regex kFunction(R"((?:struct|class) (\w+) : (?:public )?(?:torch::autograd::|Autograd)Function<)");
  // The name of a scope is a literal, or that of the matmuls that an operator is called with.
  static const std::regex kScope(
      R"re(OperatorScope scope\(OperatorKind::\w+, (?:"lehr::(\w+)"|matmuls->names\(\)\.\w+)\))re");
  std::set<std::string> scopes;
  std::vector<std::string> complaints;
  for (const Source& source : sources) {
    if (source.path.starts_with("lehr/base/")) {
      continue;  // the base of autograd functions
    }
    std::string function;
    bool in_backward = false;
    for (size_t i = 0; i < source.lines.size(); ++i) {
      const std::string& line = source.lines[i];
      std::smatch match;
      if (std::regex_search(line, match, kFunction)) {
        function = match[1];
      }
      if (line.find(" backward(") != std::string::npos && line.find("static") != std::string::npos) {
        in_backward = kGlue.count(function) == 0;
      }
      if (std::regex_search(line, match, kScope)) {
        scopes.insert(match[1]);
        in_backward = false;
      }
      if (in_backward && (line == "  }" || line == "};")) {
        complaints.push_back(fmt::format("{}:{}: {}: backward has no OperatorScope", source.path, i + 1, function));
        in_backward = false;
      }
    }
  }
  for (const Source& source : sources) {
    static const std::set<std::string> kInside = {
        "lehr/ops/attention/attention_cpu.h",
        "lehr/ops/autograd.h",
        "lehr/ops/chunked_loss.h",
        "lehr/ops/cpu.h",
        "lehr/ops/cuda.h",
        "lehr/ops/device.h",
        "lehr/ops/gated_delta_rule/cuda.h",
        "lehr/ops/grouped_linear/cuda.h",
        "lehr/ops/grouped_linear/groups.h",
        "lehr/ops/grouped_linear_float8/cuda.h",
        "lehr/ops/logit_softcap.h",
        "lehr/ops/rms_norm/bodies.h",
        "lehr/ops/rms_norm/rows.h"};
    if (!source.is_header() || !source.path.starts_with("lehr/ops/") || kInside.count(source.path) != 0 ||
        source.path.starts_with("lehr/ops/kernels/") || source.path.starts_with("lehr/ops/cuda/") ||
        source.path.ends_with("/kernels.h")) {
      continue;
    }
    for (size_t i = 0; i < source.lines.size(); ++i) {
      std::smatch match;
      if (std::regex_search(source.lines[i], match, kDeclared) && kParts.count(match[1]) == 0 &&
          scopes.count(match[1]) == 0) {
        complaints.push_back(fmt::format(
            "{}:{}: {} has no OperatorScope(OperatorKind::..., \"lehr::{}\")",
            source.path,
            i + 1,
            match[1].str(),
            match[1].str()));
      }
    }
  }
  return complaints;
}

std::string joined(const std::vector<std::string>& lines) {
  return fmt::format("{}", fmt::join(lines, "\n"));
}

/// The tree that this test was built from.
class Tree : public ::testing::Test {
 protected:
  static fs::path root() { return LEHR_SOURCE_DIR; }
  static Folders folders() {
    std::ifstream file(root() / "CMakeLists.txt");
    std::stringstream text;
    text << file.rdbuf();
    return parse_folders(text.str());
  }
  static std::vector<Source> library() { return read_sources(root(), {"lehr"}); }
};

TEST_F(Tree, IncludesFollowTheDependencies) {
  const std::vector<std::string> complaints = forbidden_includes(folders(), library());
  EXPECT_TRUE(complaints.empty()) << joined(complaints);
}

TEST_F(Tree, HasNoUnknownFolderAndNoCycle) {
  // CMake reads the list in order, so a dependency upward would not even configure; this test names it.
  const Folders all = folders();
  ASSERT_EQ(all.count("base"), 1u) << "CMakeLists.txt: no lehr_library(base) was found";
  for (const auto& [folder, used] : all) {
    for (const std::string& other : used) {
      EXPECT_EQ(all.count(other), 1u) << "CMakeLists.txt: " << folder << " uses " << other << ", which is no folder";
    }
    EXPECT_EQ(reachable(all, folder).count(folder), 0u) << "CMakeLists.txt: " << folder << " reaches itself";
  }
}

TEST_F(Tree, LayersDoNotDependOnTheMesh) {
  const std::set<std::string> seen = reachable(folders(), "nn");
  for (const char* unknown : {"mesh", "shard", "pipeline", "state", "model", "train"}) {
    EXPECT_EQ(seen.count(unknown), 0u) << "CMakeLists.txt: nn reaches " << unknown
                                       << "; a layer reads as single-device code";
  }
}

TEST_F(Tree, TheTrainerDoesNotDependOnModels) {
  EXPECT_EQ(reachable(folders(), "train").count("model"), 0u)
      << "CMakeLists.txt: train reaches model; a model comes to the trainer through its train spec";
}

TEST_F(Tree, LibTorchIsIncludedThroughOneHeader) {
  const std::vector<std::string> complaints = stray_torch_includes(library());
  EXPECT_TRUE(complaints.empty()) << joined(complaints);
}

TEST_F(Tree, FilesBeginWithTheirPurpose) {
  const std::vector<std::string> complaints =
      unmarked_files(read_sources(root(), {"app", "bench", "example", "lehr", "python"}));
  EXPECT_TRUE(complaints.empty()) << joined(complaints);
}

TEST_F(Tree, FilesAreShort) {
  const std::vector<std::string> complaints = long_files(read_sources(root(), {"app", "lehr", "python"}));
  EXPECT_TRUE(complaints.empty()) << joined(complaints);
}

TEST_F(Tree, OperatorsHaveAKind) {
  const std::vector<std::string> complaints = operators_without_kind(library());
  EXPECT_TRUE(complaints.empty()) << joined(complaints);
}

// A scope is a slot of lehr/base/call_context.h, so that all that a call is made under is in one place.
TEST_F(Tree, ThreadLocalsAreCachesExceptTheCallContext) {
  std::set<std::string> others;
  for (const Source& source : library()) {
    for (size_t i = 0; i < source.lines.size(); ++i) {
      const std::string& line = source.lines[i];
      const std::string explained = (i > 0 ? source.lines[i - 1] : "") + line;
      if (std::regex_search(line, std::regex(R"(^\s*(static |constinit )?thread_local\b)")) &&
          explained.find("no scope") == std::string::npos) {
        others.insert(fmt::format("{}:{}", source.path, i + 1));
      }
    }
  }
  EXPECT_THAT(others, testing::ElementsAre(testing::StartsWith("lehr/base/call_context.cpp:")));
}

// setenv is undefined behaviour during another thread's getenv, so the program calls it before it has a second thread.
TEST_F(Tree, EnvironmentVariablesAreSetBeforeThreadsStart) {
  std::set<std::string> places;
  size_t set = 0, threads = 0;  // lines of train_on in lehr/app/train.cpp
  for (const Source& source : read_sources(root(), {"app", "lehr", "python"})) {
    for (size_t i = 0; i < source.lines.size(); ++i) {
      const std::string& line = source.lines[i];
      if (std::regex_search(line, std::regex(R"(\b(setenv|unsetenv|putenv)\()"))) {
        places.insert(source.path);
      }
      if (source.path == "lehr/app/train.cpp") {
        set = line.find("train::set_library_variables(") != std::string::npos ? i : set;
        threads = line.find("  StopSignals signals;") != std::string::npos ? i : threads;
      }
    }
  }
  EXPECT_THAT(
      places,
      testing::ElementsAre("lehr/mesh/backend_variables.cpp", "lehr/ops/cpu_choice.cpp", "lehr/train/device.cpp"))
      << "set_library_variables, set_backend_variables and restrict_cpu_libraries are the places for it";
  EXPECT_GT(set, 0U);
  EXPECT_GT(threads, set) << "lehr/app/train.cpp: the signals' thread, the first one, must come later";
}

// The rules above pass on a good tree; the tests below show that they fail on a bad one.

TEST(StructureRules, ReadTheDependenciesOfCMakeLists) {
  const Folders folders =
      parse_folders("lehr_library(base)\nlehr_library(nn   USES ops)\nlehr_library(a USES\n  b c)\n");
  EXPECT_EQ(folders, (Folders{{"base", {}}, {"nn", {"ops"}}, {"a", {"b", "c"}}}));
}

TEST(StructureRules, FollowDependenciesTransitively) {
  const Folders folders = {{"nn", {"ops"}}, {"ops", {"mesh"}}, {"mesh", {}}};
  EXPECT_THAT(reachable(folders, "nn"), ::testing::ElementsAre("mesh", "ops"));
}

TEST(StructureRules, ForbidIncludesOfIndirectDependencies) {
  const Folders folders = {{"nn", {"ops"}}, {"ops", {"mesh"}}, {"mesh", {}}};
  const Source source = {
      .path = "lehr/nn/linear.cpp",
      .lines = {
          "// A layer.",
          "#include \"lehr/base/torch.h\"",
          "#include \"lehr/ops/linear/linear.h\"",
          "#  include <lehr/mesh/device_mesh.h>"}};
  EXPECT_THAT(
      forbidden_includes(folders, {source}),
      ::testing::ElementsAre(
          ::testing::StartsWith("lehr/nn/linear.cpp:4: includes lehr/mesh/device_mesh.h, but nn may use ops only")));
}

TEST(StructureRules, ForbidIncludesFromAFolderMissingInCMakeLists) {
  const Source source = {.path = "lehr/stray/a.h", .lines = {"#include \"lehr/nn/module.h\""}};
  EXPECT_EQ(forbidden_includes({{"nn", {}}}, {source}).size(), 1u);
}

TEST(StructureRules, FindLibTorchInHeadersOnly) {
  const std::vector<std::string> lines = {"#include <torch/torch.h>", "#include <ATen/ops/add.h>"};
  EXPECT_EQ(stray_torch_includes({{.path = "lehr/nn/a.h", .lines = lines}}).size(), 2u);
  EXPECT_EQ(stray_torch_includes({{.path = "lehr/nn/a.cpp", .lines = lines}}).size(), 0u);
  EXPECT_EQ(stray_torch_includes({{.path = "lehr/base/torch.h", .lines = lines}}).size(), 0u);
}

TEST(StructureRules, FindOperatorsWithoutAKind) {
  const Source header = {.path = "lehr/ops/new_op.h", .lines = {"at::Tensor new_op(const at::Tensor& x);"}};
  const Source function = {
      .path = "lehr/ops/new_op.cpp",
      .lines = {
          "struct NewOp : AutogradFunction<NewOp> {",
          "  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {",
          "    return {grads[0]};",
          "  }",
          "};"}};
  Source scoped = function;
  scoped.lines.insert(
      scoped.lines.begin() + 2, "    const OperatorScope scope(OperatorKind::other, \"lehr::new_op_backward\");");
  scoped.lines.push_back("  const OperatorScope scope(OperatorKind::other, \"lehr::new_op\");");
  EXPECT_EQ(operators_without_kind({function, header}).size(), 2u);
  EXPECT_EQ(operators_without_kind({scoped, header}).size(), 0u);
}

TEST(StructureRules, FindUnmarkedAndLongFiles) {
  const Source header = {.path = "lehr/nn/a.h", .lines = std::vector<std::string>(kMaxLines + 1, "int x;")};
  EXPECT_EQ(unmarked_files({header}).size(), 2u);
  EXPECT_EQ(unmarked_files({{.path = "lehr/nn/b.cpp", .lines = {"int x;"}}}).size(), 1u);
  const Source pair = {.path = "lehr/nn/c.h", .lines = {"// A pair.", "#pragma once"}};
  EXPECT_EQ(unmarked_files({{.path = "lehr/nn/c.cpp", .lines = {"int x;"}}, pair}).size(), 0u);
  EXPECT_EQ(long_files({header}).size(), 1u);
  EXPECT_EQ(long_files({{.path = "lehr/data/x_tables.cpp", .lines = header.lines}}).size(), 0u);
}

}  // namespace
