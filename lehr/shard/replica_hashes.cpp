#include "lehr/shard/replica_hashes.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>

#include "lehr/base/random.h"

namespace lehr::shard {

namespace {
constexpr size_t kMostDifferences = 8;
constexpr int64_t kNameLength = 256;
constexpr int64_t kColumns = 3;  // key, hash of the value, hash of the gradient

// After one round two changes of the highest bit may still cancel.
constexpr int kRounds = 2;

// Each word is mixed by bijections that depend on its place, so a change of one word always changes the sum.
at::Tensor hash_of_words(const at::Tensor& words, int64_t first) {
  constexpr int64_t kFirst = 0x1E3779B97F4A7C15, kSecond = 0x3F58476D1CE4E5B9, kLowHalf = 0xFFFFFFFF;
  at::Tensor mixed = at::arange(first, first + words.numel(), words.options().dtype(at::kLong));
  mixed.mul_(2).add_(1).mul_(kFirst).mul_(words.to(at::kLong));
  for (int round = 0; round < kRounds; ++round) {
    mixed.bitwise_xor_(mixed.bitwise_right_shift(32).bitwise_and_(kLowHalf));
    mixed.mul_(kSecond);
  }
  return mixed.sum();
}

// Names the shard: the same on all ranks that hold it.
int64_t key_of(const nn::NamedParameter& entry) {
  std::string text = entry.name;
  for (const Range& range : entry.parameter->box()) {
    text += fmt::format("/{}-{}", range.begin, range.end);
  }
  return static_cast<int64_t>(hash_name(text));
}

// The ranks that hold a shard, by hash.
using Holders = std::map<int64_t, std::vector<int64_t>>;

ReplicaDifference difference_of(const Holders& holders, bool gradient) {
  ReplicaDifference difference{.gradient = gradient};
  size_t all = 0, most = 0;
  for (const auto& [hash, ranks] : holders) {
    all += ranks.size();
    most = std::max(most, ranks.size());
  }
  difference.majority = 2 * most > all;
  for (const auto& [hash, ranks] : holders) {
    if (!difference.majority || ranks.size() < most) {
      difference.ranks.insert(difference.ranks.end(), ranks.begin(), ranks.end());
    }
  }
  std::sort(difference.ranks.begin(), difference.ranks.end());
  return difference;
}

// (n, kColumns) int64 in host memory, of this rank's n shards.
at::Tensor hashes_here(const std::vector<nn::NamedParameter>& parameters) {
  const auto count = static_cast<int64_t>(parameters.size());
  const at::Tensor keys = at::zeros({count, 1}, at::kLong);
  std::vector<at::Tensor> hashes;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const at::Tensor value = parameters[i].parameter->value();
    keys.mutable_data_ptr<int64_t>()[i] = key_of(parameters[i]);
    hashes.push_back(hash_of_bits(value));
    const at::Tensor gradient = value.grad();
    hashes.push_back(gradient.defined() ? hash_of_bits(gradient) : at::zeros_like(hashes.back()));
  }
  if (hashes.empty()) {
    return at::zeros({0, kColumns}, at::kLong);
  }
  for (at::Tensor& hash : hashes) {
    hash = hash.to(hashes.front().device());
  }
  return at::cat({keys, at::stack(hashes).cpu().view({count, 2})}, 1).contiguous();
}

// Ranks that hold a difference know its name; the result is the same on all.
void exchange_names(
    std::vector<ReplicaDifference>& differences,
    const std::vector<int64_t>& keys,
    const std::vector<nn::NamedParameter>& parameters,
    const mesh::Group& world) {
  const at::Tensor letters = at::zeros({static_cast<int64_t>(keys.size()), kNameLength}, at::kLong);
  auto* const all = letters.mutable_data_ptr<int64_t>();
  for (const nn::NamedParameter& entry : parameters) {
    const int64_t key = key_of(entry);
    for (size_t i = 0; i < keys.size(); ++i) {
      if (key == keys[i]) {
        std::copy_n(
            entry.name.begin(),
            std::min<int64_t>(static_cast<int64_t>(entry.name.size()), kNameLength),
            all + static_cast<int64_t>(i) * kNameLength);
      }
    }
  }
  world.all_reduce_max(letters);
  for (size_t i = 0; i < keys.size(); ++i) {
    const int64_t* const begin = all + static_cast<int64_t>(i) * kNameLength;
    for (const int64_t* letter = begin; letter != begin + kNameLength && *letter != 0; ++letter) {
      differences[i].parameter += static_cast<char>(*letter);
    }
  }
}
}  // namespace

at::Tensor hash_of_bits(const at::Tensor& tensor) {
  const at::NoGradGuard no_grad;
  constexpr int64_t kWordsAtOnce = int64_t{1} << 20;
  at::ScalarType word = at::kLong;
  switch (tensor.element_size()) {
    case 1:
      word = at::kChar;
      break;
    case 2:
      word = at::kShort;
      break;
    case 4:
      word = at::kInt;
      break;
    default:
      break;
  }
  const at::Tensor words = tensor.detach().contiguous().view({-1}).view(word);
  at::Tensor sum = at::zeros({}, words.options().dtype(at::kLong));
  for (int64_t first = 0; first < words.numel(); first += kWordsAtOnce) {
    sum.add_(hash_of_words(words.narrow(0, first, std::min(kWordsAtOnce, words.numel() - first)), first));
  }
  return sum;
}

std::vector<ReplicaDifference> compare_replicas(
    const std::vector<nn::NamedParameter>& parameters, mesh::DistributedContext& context) {
  const at::Tensor here = hashes_here(parameters);
  const at::Tensor most = at::full({1}, here.size(0), at::kLong);
  context.world().all_reduce_max(most);
  const auto rows = most.item<int64_t>();
  const at::Tensor mine = at::zeros({rows, kColumns}, at::kLong);
  mine.narrow(0, 0, here.size(0)).copy_(here);
  const at::Tensor all = at::zeros({context.world_size() * rows, kColumns}, at::kLong);
  context.world().all_gather(all, mine);

  std::map<int64_t, std::array<Holders, 2>> shards;
  const auto* const numbers = all.const_data_ptr<int64_t>();
  for (int64_t row = 0; row < all.size(0); ++row) {
    const int64_t* const entry = numbers + row * kColumns;
    if (entry[0] != 0) {  // 0: padding
      shards[entry[0]][0][entry[1]].push_back(row / rows);
      shards[entry[0]][1][entry[2]].push_back(row / rows);
    }
  }
  std::vector<ReplicaDifference> differences;
  std::vector<int64_t> keys;
  for (const auto& [key, holders] : shards) {
    for (size_t kind = 0; kind < holders.size(); ++kind) {
      if (holders[kind].size() > 1 && differences.size() < kMostDifferences) {
        differences.push_back(difference_of(holders[kind], kind == 1));
        keys.push_back(key);
      }
    }
  }
  if (!differences.empty()) {
    exchange_names(differences, keys, parameters, context.world());
  }
  return differences;
}

}  // namespace lehr::shard
