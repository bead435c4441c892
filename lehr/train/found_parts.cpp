#include "lehr/train/found_parts.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>
#include <sstream>

#include "lehr/base/error.h"
#include "lehr/state/checkpoint_contents.h"
#include "lehr/state/checkpoint_part.h"
#include "lehr/state/integrity.h"
#include "lehr/train/run_state.h"

namespace lehr::train {

namespace {
namespace fs = std::filesystem;

// Stands for a whole checkpoint, without parts, in lists of parts.
constexpr state::PartName kWhole{.rank = 0, .world_size = 1};

// The parts of a step, by the ranks that see them.
using SeenBy = std::vector<std::vector<int64_t>>;

std::vector<int64_t> missing(const SeenBy& parts) {
  std::vector<int64_t> ranks;
  for (size_t rank = 0; rank < parts.size(); ++rank) {
    if (parts[rank].empty()) {
      ranks.push_back(static_cast<int64_t>(rank));
    }
  }
  return ranks;
}

// Throws unless the part can be read.
void require_undamaged(const fs::path& folder, bool is_whole, bool contents) {
  state::OneRank here;
  const auto damage = state::find_damage(folder, contents, here);
  require(!damage, "{}", damage.value_or(""));
  if (!is_whole) {
    state::read_part(folder);
  }
}

// What is not in the parts of all ranks but in that of rank 0: names, limits and lists of the weights.
std::string pack_sets(const state::CheckpointContents& main) {
  std::vector<std::string> fields;
  for (const state::WeightSet& set : main.weights) {
    fields.insert(fields.end(), {set.stem, std::to_string(set.max_shard_bytes), state::pack_infos(set.all)});
  }
  return state::pack_texts(fields);
}

std::vector<state::WeightSet> unpack_sets(const std::string& packed) {
  const auto fields = state::unpack_texts(packed);
  std::vector<state::WeightSet> sets;
  for (size_t i = 0; i < fields.size(); i += 3) {
    sets.push_back(
        {.stem = fields.at(i),
         .tensors = {},
         .max_shard_bytes = std::stoll(fields.at(i + 1)),
         .all = state::unpack_infos(fields.at(i + 2)),
         .parts = {}});
  }
  return sets;
}
}  // namespace

FoundParts::FoundParts(fs::path folder, std::shared_ptr<state::Coordinator> coordinator)
    : found_(std::move(folder)), sees_(!found_.root().empty()), coordinator_(std::move(coordinator)) {
  std::map<int64_t, std::map<int64_t, SeenBy>> steps;  // by step and number of parts
  const auto lists = coordinator_->exchange("local parts", listed());
  for (size_t rank = 0; rank < lists.size(); ++rank) {
    std::istringstream list(lists[rank]);
    state::PartName part;
    for (int64_t step = 0; list >> step >> part.rank >> part.world_size;) {
      SeenBy& parts = steps[step][part.world_size];
      parts.resize(static_cast<size_t>(part.world_size));
      parts[static_cast<size_t>(part.rank)].push_back(static_cast<int64_t>(rank));
    }
  }
  for (auto& [step, by_parts] : steps) {
    newest_seen_ = step;
    auto& [world_size, parts] = *by_parts.begin();  // all starts have folders of their own
    const auto lacks = missing(parts);
    if (lacks.empty()) {
      newest_ = step;
      seen_by_ = std::move(parts);
    } else if (!newest_) {
      lost_ = fmt::format(
          "the local checkpoint of step {} is lost: no machine of this start has the part{} of rank{} {} of {}",
          step,
          lacks.size() == 1 ? "" : "s",
          lacks.size() == 1 ? "" : "s",
          fmt::join(lacks, ", "),
          world_size);
    }
  }
  if (newest_) {
    lost_.reset();
    is_whole_ = seen_by_.size() == 1;
  }
}

// The parts that this rank sees: step, rank and number of ranks of each.
std::string FoundParts::listed() const {
  std::string list;
  const auto add = [&](int64_t step, const state::PartName& part) {
    list += fmt::format("{} {} {} ", step, part.rank, part.world_size);
  };
  try {
    for (const state::Checkpoint& checkpoint : sees_ ? found_.list() : std::vector<state::Checkpoint>()) {
      if (fs::exists(checkpoint.path / kRunStateFile)) {
        add(checkpoint.step, kWhole);
      }
      for (const auto& entry : fs::directory_iterator(checkpoint.path)) {
        const auto part = state::part_name(entry.path().filename());
        if (part && fs::exists(entry.path() / state::kIntegrityFile)) {
          add(checkpoint.step, *part);
        }
      }
    }
  } catch (const std::exception&) {
    // Not thrown, as the other ranks wait: what cannot be listed is not there.
  }
  return list;
}

fs::path FoundParts::folder_of(int64_t part) const {
  const fs::path step = found_.path_of(newest_.value_or(-1));
  return is_whole_ ? step
                   : step / state::folder_name({.rank = part, .world_size = static_cast<int64_t>(seen_by_.size())});
}

// The parts that this rank reads: those that several ranks see are divided among them.
std::vector<int64_t> FoundParts::mine() const {
  std::vector<int64_t> parts;
  for (size_t part = 0; part < seen_by_.size(); ++part) {
    if (seen_by_[part][part % seen_by_[part].size()] == coordinator_->rank()) {
      parts.push_back(static_cast<int64_t>(part));
    }
  }
  return parts;
}

// Forgets damaged copies until each part is assigned to a rank that sees an undamaged one. Returns the damage of a part
// that has none.
std::optional<std::string> FoundParts::drop_damaged(bool contents) {
  std::set<int64_t> checked;
  for (bool again = true; again;) {
    std::vector<std::pair<std::string, std::string>> bad;
    for (const int64_t part : mine()) {
      try {
        if (checked.insert(part).second) {
          require_undamaged(folder_of(part), is_whole_, contents);
        }
      } catch (const std::exception& error) {
        bad.emplace_back(std::to_string(part), error.what());
      }
    }
    again = false;
    const auto texts = coordinator_->exchange("local damage", state::pack_pairs(bad));
    for (size_t rank = 0; rank < texts.size(); ++rank) {
      for (const auto& [part, problem] : state::unpack_pairs(texts[rank])) {
        auto& ranks = seen_by_.at(static_cast<size_t>(std::stoll(part)));
        std::erase(ranks, static_cast<int64_t>(rank));
        if (ranks.empty()) {
          return problem;
        }
        if (std::find(damaged_.begin(), damaged_.end(), problem) == damaged_.end()) {
          damaged_.push_back(problem);  // once for the ranks of a machine
        }
        again = true;
      }
    }
  }
  return std::nullopt;
}

std::optional<std::string> FoundParts::write_to(state::CheckpointStore& store, bool contents) {
  invariant(newest_.has_value(), "local checkpoints: there is none to write");
  if (auto damage = drop_damaged(contents)) {
    return damage;
  }
  if (is_whole_) {
    copy_whole(store);
  } else {
    write_parts(store);
  }
  return std::nullopt;
}

std::vector<std::string> FoundParts::warnings(int64_t step) const {
  std::vector<std::string> texts;
  for (const std::string& damage : damaged_) {
    texts.push_back(damage + "; the copy of another machine is used");
  }
  if (lost_ && newest_seen_ > step) {
    texts.push_back(
        *lost_ + (step < 0 ? "; the run starts anew" : fmt::format("; the run resumes from step {}", step)));
  }
  return texts;
}

void FoundParts::copy_whole(state::CheckpointStore& store) const {
  coordinator_->all_succeed("local copy whole", [&] {
    if (mine().empty()) {
      return;
    }
    const int64_t step = newest_.value_or(-1);
    try {
      store.begin(step);
      fs::copy(folder_of(0), store.temporary_path(step), fs::copy_options::recursive);
      store.commit(step);
    } catch (...) {
      store.abandon(step);
      throw;
    }
  });
}

void FoundParts::write_parts(state::CheckpointStore& store) const {
  std::map<int64_t, state::CheckpointContents> parts;
  std::string shared;
  coordinator_->all_succeed("local read", [&] {
    for (const int64_t part : mine()) {
      parts[part] = state::read_part(folder_of(part));
    }
  });
  state::CheckpointContents all{.step = newest_.value_or(-1), .weights = {}};
  if (const auto main = parts.find(0); main != parts.end()) {
    const std::vector<std::string> checked(main->second.checked_texts.begin(), main->second.checked_texts.end());
    shared =
        state::pack_texts({pack_sets(main->second), state::pack_pairs(main->second.texts), state::pack_texts(checked)});
  }
  // The texts go to the main rank only, which writes them.
  all.weights = unpack_sets(coordinator_->decide("local describe", shared, [&](const auto& texts) {
    const auto fields = state::unpack_texts(
        *std::find_if(texts.begin(), texts.end(), [](const std::string& text) { return !text.empty(); }));
    all.texts = state::unpack_pairs(fields.at(1));
    for (const std::string& name : state::unpack_texts(fields.at(2))) {
      all.checked_texts.insert(name);
    }
    return fields.at(0);
  }));
  for (auto& [rank, part] : parts) {
    for (size_t set = 0; set < part.weights.size(); ++set) {
      auto& to = all.weights.at(set).parts;
      auto& from = part.weights[set].parts;
      to.insert(to.end(), std::make_move_iterator(from.begin()), std::make_move_iterator(from.end()));
    }
  }
  write_checkpoint(store, all, *coordinator_);
}

}  // namespace lehr::train
