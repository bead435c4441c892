// What lehr inspect --untrusted reports about folders of our own making.
#include "lehr/pretrained/untrusted.h"

#include <gmock/gmock.h>
#include <sys/stat.h>

#include <fstream>

#include "lehr/base/error.h"
#include "test/train/support.h"

namespace lehr::pretrained {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::Each;
using ::testing::Field;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using train::testing::families;
using train::testing::Folder;

const fs::path kModel = fs::path(LEHR_SOURCE_DIR) / "test/data/reference/qwen3_tied_v4config";

// A sound model, to which a test adds files.
class Untrusted : public ::testing::Test {
 protected:
  Untrusted() {
    fs::copy_file(kModel / "config.json", folder_.path() / "config.json");
    fs::copy_file(kModel / "model.safetensors", folder_.path() / "model.safetensors");
  }

  void write(const std::string& name, const std::string& text) {
    fs::create_directories((folder_.path() / name).parent_path());
    std::ofstream(folder_.path() / name, std::ios::binary) << text;
  }
  UntrustedReport look() const { return look_at_untrusted(folder_.path(), families()); }
  static auto finds(bool danger, const std::string& file, const std::string& what) {
    return Contains(
        AllOf(Field(&Finding::danger, danger), Field(&Finding::file, file), Field(&Finding::what, HasSubstr(what))));
  }

  Folder folder_;
};

TEST_F(Untrusted, ASoundFolderHasNoFindings) {
  write("README.md", "# A model");
  write("generation_config.json", R"({"eos_token_id": 2})");
  write("chat_template.jinja", "{% for m in messages %}{{ m.content }}{% endfor %}");
  const UntrustedReport report = look();
  EXPECT_THAT(report.findings, IsEmpty());
  EXPECT_EQ(report.num_files, 5);
  EXPECT_GT(report.num_tensors, 0);
  EXPECT_GT(report.num_bytes, static_cast<int64_t>(fs::file_size(kModel / "model.safetensors")));
}

TEST_F(Untrusted, SaysWhichFoldersItDoesNotLookInto) {
  write(".git/hooks/post-checkout", "#!/bin/sh\n");
  write("data/.cache/run", "#!/bin/sh\n");
  const UntrustedReport report = look();
  EXPECT_THAT(report.findings, finds(false, ".git", "not examined"));
  EXPECT_THAT(report.findings, finds(false, "data/.cache", "not examined"));
  EXPECT_THAT(report.findings, Each(Field(&Finding::danger, false)));
}

TEST_F(Untrusted, FindsFilesThatOtherProgramsExecute) {
  write("pytorch_model.bin", "x");
  write("data/weights.dat", std::string("PK\x03\x04") + std::string(26, 'x') + "archive/data.pkl");
  write("modeling_evil.py", "import os");
  write("run", "#!/bin/sh\n");
  write(
      "lib.so",
      "\x7F"
      "ELF....");
  write("more.zip", "PK\x03\x04....");
  const auto findings = look().findings;
  EXPECT_THAT(findings, finds(true, "pytorch_model.bin", "a pickle, which runs any code"));
  EXPECT_THAT(findings, finds(true, "data/weights.dat", "a pickle"));
  EXPECT_THAT(findings, finds(true, "modeling_evil.py", "Python"));
  EXPECT_THAT(findings, finds(true, "run", "a program"));
  EXPECT_THAT(findings, finds(true, "lib.so", "a program"));
  EXPECT_THAT(findings, finds(false, "more.zip", "an archive"));
}

// CVE-2026-4372: transformers downloaded code by a key other than auto_map, with trust_remote_code=false.
TEST_F(Untrusted, FindsKeysThatMakeOtherProgramsLoadCode) {
  write("tokenizer_config.json", R"({"auto_map": {"AutoTokenizer": ["evil--tok.Tok", null]}})");
  write("generation_config.json", R"({"a": [{"_attn_implementation": "evil/kernel"}], "trust_remote_code": true})");
  write("sub/config.json", R"({"_attn_implementation_internal": "org/code", "attn_implementation": "sdpa"})");
  write("model_index.json", R"({"_target_": "os.system"})");
  const auto findings = look().findings;
  EXPECT_THAT(
      findings,
      finds(true, "tokenizer_config.json", "auto_map: other programs load Python code by it; Lehr ignores it"));
  EXPECT_THAT(findings, finds(true, "generation_config.json", "_attn_implementation: other programs download code"));
  EXPECT_THAT(findings, finds(true, "generation_config.json", "trust_remote_code"));
  EXPECT_THAT(findings, finds(true, "sub/config.json", "_attn_implementation_internal"));
  EXPECT_THAT(findings, Not(finds(true, "sub/config.json", "attn_implementation: ")));
  EXPECT_THAT(findings, finds(true, "model_index.json", "_target_"));
}

TEST_F(Untrusted, FindsWaysOutOfTheFolder) {
  const Folder outside;
  std::ofstream(outside.path() / "secret") << "key";
  fs::create_symlink(outside.path() / "secret", folder_.path() / "README.md");
  fs::create_directory_symlink("/etc", folder_.path() / "etc");
  fs::create_symlink("config.json", folder_.path() / "same.json");
  ASSERT_EQ(::mkfifo((folder_.path() / "tokenizer.json").c_str(), 0600), 0);
  write("x.safetensors.index.json", R"({"weight_map": {"w": "../../secret.safetensors"}})");
  const auto findings = look().findings;
  EXPECT_THAT(
      findings, finds(true, "README.md", "a link out of the folder, to " + (outside.path() / "secret").string()));
  EXPECT_THAT(findings, finds(true, "etc", "a link out of the folder, to /etc"));
  EXPECT_THAT(findings, finds(true, "tokenizer.json", "a pipe, socket or device"));
  EXPECT_THAT(findings, finds(true, "x.safetensors.index.json", "expected a file in the same folder"));
  EXPECT_THAT(findings, Not(Contains(Field(&Finding::file, "same.json"))));
}

TEST_F(Untrusted, FindsDamagedAndAbsurdFiles) {
  write("a.safetensors", std::string("\xFF\xFF\xFF\xFF\xFF\xFF\xFF\x7F{}", 10));
  write("b.json", std::string(100'000, '['));
  write("config.json", R"({"model_type": "qwen3", "hidden_size": 99999999999})");
  const auto findings = look().findings;
  EXPECT_THAT(findings, finds(true, "a.safetensors", "a header of 9223372036854775807 bytes"));
  EXPECT_THAT(findings, finds(true, "b.json", "nested more than 256"));
  EXPECT_THAT(
      findings,
      Contains(AllOf(Field(&Finding::file, "config.json"), Field(&Finding::what, HasSubstr("Lehr refuses it")))));
}

TEST_F(Untrusted, FindsTemplatesAndPatternsThatTakeTooMuch) {
  write(
      "chat_template.jinja",
      "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}{{ ''.__class__.__mro__ }}");
  write(
      "tokenizer.json",
      R"({"version": "1.0", "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Split", "pattern":
          {"Regex": "(?:a+)+[bc]"}, "behavior": "Isolated"}, {"type": "ByteLevel", "use_regex": false}]},
          "decoder": {"type": "ByteLevel"}, "model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}})");
  const auto findings = look().findings;
  EXPECT_THAT(findings, finds(true, "chat_template.jinja", "does too much work"));
  EXPECT_THAT(findings, finds(true, "chat_template.jinja", "names __class__"));
  EXPECT_THAT(findings, finds(true, "tokenizer.json", "matching the regular expression failed"));
}

TEST_F(Untrusted, WhatLehrLacksIsANoteAndNoDanger) {
  write("config.json", R"({"model_type": "whisper"})");
  const UntrustedReport report = look();
  EXPECT_THAT(report.findings, finds(false, "config.json", "whisper"));
  EXPECT_THAT(report.findings, Each(Field(&Finding::danger, false)));
  EXPECT_THROW(look_at_untrusted(folder_.path() / "none", families()), Error);
}

}  // namespace
}  // namespace lehr::pretrained
