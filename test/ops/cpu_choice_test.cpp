// The environment variable LEHR_CPU. test/program/commands.py runs the program with it.
#include "lehr/ops/cpu_choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "test/ops/against_reference.h"

namespace lehr::ops::test {
namespace {

TEST(CpuChoice, IsTheBestInstructionSetIfNoneIsNamed) {
  EXPECT_EQ(parse_arch(nullptr, Arch::avx512), Arch::avx512);
  EXPECT_EQ(parse_arch("", Arch::avx2), Arch::avx2);
}

TEST(CpuChoice, IsTheOneThatIsNamed) {
  EXPECT_EQ(parse_arch("generic", Arch::avx512_bf16), Arch::generic);
  for (const Arch best : {Arch::generic, Arch::avx2, Arch::avx512, Arch::amx}) {
    EXPECT_EQ(fastest_arch(best, true), best);
    EXPECT_EQ(fastest_arch(best, false), best);
  }
  EXPECT_EQ(fastest_arch(Arch::avx512_bf16, false), Arch::avx512_bf16);
  EXPECT_EQ(fastest_arch(Arch::avx512_bf16, true), Arch::avx512) << "half the rate of float32";
  EXPECT_EQ(parse_arch("avx2", Arch::avx512_bf16), Arch::avx2);
  EXPECT_EQ(parse_arch("avx512", Arch::avx512_bf16), Arch::avx512);
  EXPECT_EQ(parse_arch("avx512_bf16", Arch::amx), Arch::avx512_bf16);
  EXPECT_EQ(parse_arch("amx", Arch::amx), Arch::amx);
}

TEST(CpuChoice, RefusesUnknownInstructionSets) {
  EXPECT_EQ(
      error_of([] { parse_arch("avx3", Arch::avx2); }),
      "LEHR_CPU: expected one of generic, avx2, or none, for the best; found 'avx3'");
}

TEST(CpuChoice, RefusesInstructionSetsThatTheCpuLacks) {
  EXPECT_EQ(
      error_of([] { parse_arch("avx512_bf16", Arch::avx512); }),
      "LEHR_CPU: this CPU has no AVX-512 with BF16; expected one of generic, avx2, avx512, or none, for the best");
}

TEST(CpuChoice, RefusesTilesThatTheSystemDoesNotPermit) {
  EXPECT_THAT(
      error_of([] { parse_arch("amx", Arch::avx512_bf16); }), testing::StartsWith("LEHR_CPU: this CPU has no AMX"));
}

TEST(CpuChoice, OfFloat32IsNeverDescribedAsTiles) {
  EXPECT_THAT(describe_kernels(at::kFloat), testing::Not(testing::HasSubstr("AMX")));
}

TEST(CpuChoice, IsDescribed) {
  const ArchScope scope(Arch::generic);
  EXPECT_THAT(describe_kernels(at::kFloat), testing::StartsWith("plain x86-64"));
}

}  // namespace
}  // namespace lehr::ops::test
