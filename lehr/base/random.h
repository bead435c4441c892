// Counter-based random numbers: a value is a function of a key and a counter, so it does not depend on the order of
// calls or on the partition over ranks.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace lehr {

/// One block of Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC11).
std::array<uint32_t, 4> philox(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key);

/// A random stream identified by a seed and a name, with random access by index.
class RandomStream {
 public:
  RandomStream(uint64_t seed, std::string_view name);

  /// 64 uniformly random bits.
  uint64_t bits(uint64_t index) const;
  /// Uniform in [0, 1), 32 random bits.
  double uniform(uint64_t index) const;
  /// Standard normal, by Box and Muller's method from 32-bit uniforms.
  double normal(uint64_t index) const;
  /// Writes the uniform numbers (in [0, 1)) with indices first..first+count-1 to `out`.
  void fill_uniform(uint64_t first, int64_t count, double* out) const;
  /// Writes the standard normal numbers with indices first..first+count-1 to `out`; equal to `normal`, computed four at
  /// a time.
  void fill_normal(uint64_t first, int64_t count, double* out) const;

 private:
  std::array<uint32_t, 4> block(uint64_t index) const;
  std::array<double, 4> normal_block(uint64_t index) const;
  std::array<uint32_t, 2> key_;
  uint64_t stream_;
};

/// 64-bit hash of a name (FNV-1a, then mixed); the same on every machine.
uint64_t hash_name(std::string_view name);

/// The hash_name of a long text that is added part by part, and never in memory as a whole.
class NameHash {
 public:
  void add(std::string_view part);
  uint64_t value() const;

 private:
  uint64_t hash_ = 0xCBF29CE484222325;
};

}  // namespace lehr
