// The stages of a search that ranks share: local distillation, and the measurements of variants.
#include <algorithm>

#include "lehr/base/error.h"
#include "lehr/base/log.h"
#include "lehr/search/search.h"

namespace lehr::search {

namespace {
namespace fs = std::filesystem;

constexpr const char* kUnfinished = "unfinished-";

// The losses of all ranks' variants, in the order of `places`.
std::vector<LocalDistillationResult> gather(
    const std::vector<Place>& places, const std::vector<LocalDistillationResult>& own, const train::Ranks& ranks) {
  const at::Tensor losses = at::zeros({static_cast<int64_t>(places.size()), 2}, at::kDouble);
  const auto row = [&](const Place& place) {
    return losses[std::find(places.begin(), places.end(), place) - places.begin()];
  };
  for (const LocalDistillationResult& one : own) {
    row(one.place).copy_(at::tensor({one.first_loss, one.last_loss}, at::kDouble));
  }
  ranks.sum_over_world(losses);
  std::vector<LocalDistillationResult> all;
  for (const Place& place : places) {
    all.push_back(
        {.place = place, .first_loss = row(place)[0].item<double>(), .last_loss = row(place)[1].item<double>()});
  }
  return all;
}

// Removes what searches with other settings left.
void remove_unfinished(const fs::path& folder, const fs::path& but) {
  std::vector<fs::path> others;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path() != but && entry.path().filename().string().starts_with(kUnfinished)) {
      others.push_back(entry.path());
    }
  }
  for (const fs::path& other : others) {
    fs::remove_all(other);
  }
}
}  // namespace

WorkShare Search::share() const {
  const train::Ranks& ranks = environment_.ranks;
  return {.rank = ranks.context() == nullptr ? 0 : ranks.context()->rank(), .ranks = ranks.world_size()};
}

void Search::train_library() {
  const LocalDistillationConfig& local = config_.local_distillation;
  const auto places = trainable_variants(space());
  if (local.steps == 0 || places.empty()) {
    environment_.log.info("library    variants keep the teacher's weights; local distillation is off");
    return;
  }
  if (is_done(Stage::library) && read_trained(path("library"), *library_, places)) {
    done_before_ = true;
    environment_.log.info("library    {} variants, trained before", places.size());
    return;
  }
  const train::Ranks& ranks = environment_.ranks;
  const fs::path saves = path("library") / fmt::format("{}{:08x}", kUnfinished, checksum_of(identity(Stage::library)));
  ranks.main_first([&] {
    if (ranks.is_main()) {
      set_not_done(Stage::library);
      fs::create_directories(saves);
      remove_unfinished(path("library"), saves);
    }
  });
  if (!fs::is_empty(saves)) {
    environment_.log.info("library    continues with the variants that were saved in training");
  }
  std::vector<Place> own;
  for (size_t i = 0; i < places.size(); ++i) {
    if (share().has(static_cast<int64_t>(i), static_cast<int64_t>(places.size()))) {
      own.push_back(places[i]);
    }
  }
  const auto batches = [&](int64_t first_step) {
    const int64_t rows = environment_.rows_per_step;
    return environment_.data.train(train::RowShare::all(rows), first_step * rows);
  };
  const auto results = distil_locally(
      *library_, own, environment_.task, batches, local, saves, [&](const LocalDistillationProgress& progress) {
        show(fmt::format("library, loss {:.3g}", progress.loss), progress.step, progress.steps);
      });
  write_trained(path("library"), *library_, own);
  results_.local_distillation = gather(places, results, ranks);  // after this, all ranks' files are there
  require(
      ranks.world_size() == 1 || read_trained(path("library"), *library_, places),
      "{}: files of variants that other ranks wrote are missing; ranks must share the folder search.output",
      path("library").string());
  if (ranks.is_main()) {
    set_done(Stage::library);
    remove_unfinished(path("library"), "");
  }
  double first = 0, after = 0;
  for (const auto& result : results_.local_distillation) {
    first += result.first_loss;
    after += result.last_loss;
  }
  environment_.log.info(
      "library    {} variants; mean normalized error {:.4g} before, {:.4g} after {} steps",
      places.size(),
      first / static_cast<double>(places.size()),
      after / static_cast<double>(places.size()),
      local.steps);
}

// All ranks call it with the same base.
SpaceScores Search::scores_around(const Choice& base, const std::string& what) {
  const fs::path file = path("scores.jsonl");
  const auto score = [&](ScoreRecords records, const WorkShare& part) {
    return score_space(
        *library_,
        held_out(),
        teacher_identity_,
        base,
        records,
        [&](int64_t done, int64_t all) { show(what, done, all); },
        part);
  };
  if (share().ranks == 1) {
    return score(ScoreRecords(file), {});
  }
  const SpaceScores own = score(ScoreRecords(file, share().rank), share());
  const at::Tensor forwards = at::tensor({own.layer_forwards, own.layer_forwards_without_reuse}, at::kLong);
  environment_.ranks.sum_over_world(forwards);  // after this, all measurements are in the files
  SpaceScores all = score(ScoreRecords::of_all_ranks(file), WorkShare::none());
  require(
      all.missing == 0,
      "{}: measurements of other ranks are missing; ranks must share the folder search.output",
      file.string());
  all.layer_forwards = forwards[0].item<int64_t>();
  all.layer_forwards_without_reuse = forwards[1].item<int64_t>();
  return all;
}

// The main rank's choice on all ranks; nothing if it has none.
std::optional<Choice> Search::from_main(const std::optional<Choice>& choice) const {
  const train::Ranks& ranks = environment_.ranks;
  if (ranks.of_main(choice ? 1 : 0) == 0) {
    return std::nullopt;
  }
  Choice shared = choice.value_or(teacher_choice(space()));
  for (std::vector<size_t>* variants : {&shared.attention, &shared.ffn}) {
    for (size_t& variant : *variants) {
      variant = static_cast<size_t>(ranks.of_main(static_cast<int64_t>(variant)));
    }
  }
  return shared;
}

// For the main rank: the others wait for its choice in help_to_solve.
SpaceScores Search::scores_around_for_all(const Choice& base, const std::string& what) {
  from_main(base);
  return scores_around(base, what);
}

void Search::help_to_solve() {
  while (const auto base = from_main(std::nullopt)) {
    scores_around(*base, "");
  }
}

}  // namespace lehr::search
