#include "test/train/compare_draw.h"

#include <fmt/ranges.h>

#include <chrono>
#include <fstream>
#include <limits>

#include "lehr/base/error.h"
#include "lehr/base/file.h"
#include "lehr/config/json.h"
#include "test/train/features.h"

namespace lehr::train::testing {

namespace {
// The part of a text with that number. Parts have different lengths.
std::string part_of_text(size_t number) {
  return std::string("the quick brown fox jumps over the dog").substr(number % 17, 4 + number % 9);
}

std::string labelled_text(size_t number) {
  return fmt::format(R"({{"text": "{}", "label": {}}})", part_of_text(number), number % 2);
}

// One to four words with labels.
std::string labelled_words(size_t number) {
  std::vector<std::string> words{std::to_string(number * number)};
  std::vector<size_t> labels{number % 3};
  for (size_t i = 0; i < number % 4; ++i) {
    words.push_back(i % 2 == 0 ? "fox" : std::to_string(number));
    labels.push_back((number + i) % 3);
  }
  return fmt::format(R"({{"tokens": ["{}"], "ner_tags": [{}]}})", fmt::join(words, R"(", ")"), fmt::join(labels, ", "));
}

// No text occurs twice: rounding would decide which of two candidates is the more similar one.
std::string pair_of_texts(size_t number) {
  return fmt::format(
      R"({{"anchor": "{0} {1}", "positive": "{2}{1}", "negative": "no {1} {0}"}})",
      part_of_text(number),
      number,
      part_of_text(number + 5));
}

// A folder of the examples of draw_run. A run does not read more pairs than there are.
std::filesystem::path examples() {
  static const Folder folder;
  struct Kind {
    const char* task;
    size_t count;
    std::string (*line)(size_t number);
  };
  for (const auto& [task, count, line] :
       {Kind{"classification", 64, labelled_text},
        Kind{"token_classification", 64, labelled_words},
        Kind{"embedding", 400, pair_of_texts}}) {
    std::string lines, held_out;
    for (size_t i = 0; i < count; ++i) {
      (i < 32 ? held_out : lines) += line(i) + "\n";
    }
    const auto file = folder.path() / (std::string(task) + ".jsonl");
    if (!std::filesystem::exists(file)) {
      write_file_atomically(folder.path() / (std::string(task) + "_validation.jsonl"), held_out);
      write_file_atomically(file, lines);
    }
  }
  return folder.path();
}

Overrides joined(const std::vector<Overrides>& parts) {
  Overrides all;
  for (const Overrides& part : parts) {
    all.insert(all.end(), part.begin(), part.end());
  }
  return all;
}

// A model of that shape which one step has trained, as a base of adapters and as a teacher: its folder.
std::string trained_model(const Overrides& shape, const Folder& folder) {
  const auto config = tiny_run(
      folder.path(),
      joined({shape, {{"training.steps", "1"}, {"checkpoint.interval", "1"}, {"lr_scheduler.warmup_steps", "0"}}}));
  train(config);
  return '"' + checkpoint(config, 1).string() + '"';
}

// The degrees of a mesh as overrides, so that what checks a config sees them.
Overrides degrees(const Mesh& mesh) {
  Overrides found;
  for (const auto& [key, degree] : std::initializer_list<std::pair<const char*, int64_t>>{
           {"data_parallel_replicate_degree", mesh.dp_replicate},
           {"data_parallel_shard_degree", mesh.dp_shard},
           {"context_parallel_degree", mesh.cp},
           {"tensor_parallel_degree", mesh.tp},
           {"expert_parallel_degree", mesh.ep},
           {"pipeline_parallel_degree", mesh.pp}}) {
    found.emplace_back(std::string("parallelism.") + key, std::to_string(degree));
  }
  return found;
}

// Compares the results of a run with those of one device, value by value.
class Comparer {
 public:
  Comparer(Comparison& found, double bound) : found_(found), bound_(bound) {}

  void compare(const std::string& name, const at::Tensor& wanted, const at::Tensor& other) {
    if (wanted.sizes() != other.sizes()) {
      differs(name, std::numeric_limits<double>::infinity());
      note(fmt::format("{}: {} elements instead of {}", name, other.numel(), wanted.numel()));
    } else if (wanted.numel() > 0) {
      const double error = (wanted - other).abs().max().item<double>(), scale = wanted.abs().max().item<double>();
      const double relative = error == 0 ? 0 : error / scale;
      differs(name, relative);
      if (!(error <= bound_ * scale)) {  // also if it is no number
        note(fmt::format("{}: off by {:.1e} of {:.3g}", name, error, scale));
      }
    }
  }

 private:
  void differs(const std::string& name, double relative) {
    if (!(relative <= found_.largest)) {
      found_.largest = std::isnan(relative) ? std::numeric_limits<double>::infinity() : relative;
      found_.where = name;
    }
  }
  void note(std::string line) {
    if (found_.differs.size() < 20) {
      found_.differs.push_back(std::move(line));
    }
  }
  Comparison& found_;
  double bound_;
};

void compare(const Outcome& wanted, const Outcome& other, double bound, Comparison& found) {
  Comparer comparer(found, bound);
  const at::Tensor none = at::empty({0}, at::kDouble);
  for (const auto& [key, values] : wanted.curves) {
    const auto& others = other.curves.at(key);
    for (size_t i = 0; i < std::max(values.size(), others.size()); ++i) {
      const auto value_at = [&](const std::vector<double>& curve) {
        return i < curve.size() ? at::full({1}, curve[i], at::kDouble) : none;
      };
      comparer.compare(fmt::format("{} {}", key, i + 1), value_at(values), value_at(others));
    }
  }
  for (const auto& [name, value] : wanted.tensors) {
    const auto same = other.tensors.find(name);
    comparer.compare(name, value.to(at::kDouble), same == other.tensors.end() ? none : same->second.to(at::kDouble));
  }
  for (const auto& [name, value] : other.tensors) {
    if (!wanted.tensors.contains(name)) {
      comparer.compare(name, none, value);
    }
  }
}

Node texts(const auto& list) {
  Node node = Node::make_list();
  for (const std::string& text : list) {
    node.push_back(Node(text));
  }
  return node;
}
}  // namespace

double bound_of(const std::string& family) {
  return family.starts_with("gemma4") ? 1e-8 : 1e-9;
}

uint64_t seed_of_draws() {
  const char* const text = std::getenv("LEHR_TEST_SEED");
  return text == nullptr ? 0 : static_cast<uint64_t>(std::stoll(text));
}

Draw draw_number(uint64_t seed, int64_t number) {
  static const std::vector<std::string> kFamilies = trained_families();
  return draw_run(seed, number, kFamilies, examples());
}

Comparison compare_with_one_device(const Draw& draw) {
  const auto began = std::chrono::steady_clock::now();
  Comparison found;
  const auto stop_clock = [&] {
    found.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  };
  const Folder of_base, of_teacher, of_one, folder;
  Overrides start{
      {"training.steps", std::to_string(kStepsOfDraw)}, {"checkpoint.interval", std::to_string(kStepsOfDraw)}};
  if (draw.adapters) {
    start.emplace_back("checkpoint.initial_load_path", trained_model(draw.shape, of_base));
  }
  if (draw.teacher) {
    start.emplace_back("distillation.teacher", trained_model(*draw.teacher, of_teacher));
  }
  TrainConfig config;
  bool began_run = false;
  try {
    config = tiny_run(folder.path(), joined({draw.shape, draw.run, start, draw.on_mesh, degrees(draw.mesh)}));
    train_on(draw.mesh, config, draw.then ? kStepsOfDraw / 2 : 0);
    began_run = true;
    if (draw.then) {
      config = tiny_run(
          folder.path(), joined({draw.shape, draw.run, start, draw.on_mesh, draw.changed, degrees(*draw.then)}));
      train_on(*draw.then, config);
    }
  } catch (const Error& error) {
    found.refused = error.what();
    found.refused_early =
        error.kind() == ErrorKind::usage && (began_run || !std::filesystem::exists(folder.path() / "out"));
    stop_clock();
    return found;
  }
  const Overrides alone = joined({draw.shape, draw.run, start, draw.alone});
  const auto one_device = tiny_run(of_one.path(), joined({alone, draw.changed}));
  if (!draw.changed.empty()) {
    train(tiny_run(of_one.path(), alone), kStepsOfDraw / 2);
  }
  train(one_device);
  const std::string weights = draw.adapters ? "adapter_model" : "model";
  const Outcome wanted = outcome_of(one_device, weights);
  EXPECT_EQ(wanted.curves.at("loss").size(), kStepsOfDraw);
  compare(wanted, outcome_of(config, weights), bound_of(draw.family), found);
  stop_clock();
  return found;
}

void expect_equal_or_refused(const Draw& draw, const Comparison& found) {
  if (found.refused.empty()) {
    EXPECT_THAT(found.differs, ::testing::IsEmpty());
    EXPECT_EQ(Composition::rules().refuses(features(draw)), nullptr) << "ran, although a reason says 'always'";
    return;
  }
  EXPECT_TRUE(found.refused_early) << "refused after memory was allocated, or no usage error: " << found.refused;
  const Reason* const reason = Composition::rules().reason_of(found.refused);
  ASSERT_NE(reason, nullptr) << "refused for a reason that test/train/composition.json does not list: "
                             << found.refused;
  Draw second = draw;
  second.mesh = draw.then.value_or(draw.mesh);
  EXPECT_TRUE(has_features_of(features(draw), *reason) || has_features_of(features(second), *reason))
      << "has not the features of the reason: " << found.refused;
}

void record(uint64_t seed, int64_t number, const Draw& draw, const Comparison& found) {
  const char* const file = std::getenv("LEHR_COMPOSITION");
  if (file == nullptr) {
    return;
  }
  Node line = Node::make_table();
  line.set("seed", Node(static_cast<int64_t>(seed)));
  line.set("number", Node(number));
  line.set("family", Node(draw.family));
  line.set("mesh", Node(draw.mesh.name()));
  line.set("then", Node(draw.then ? draw.then->name() : ""));
  line.set("features", texts(features(draw)));
  line.set("result", Node(!found.refused.empty() ? "refused" : found.equal() ? "equal" : "different"));
  if (!found.refused.empty()) {
    line.set("error", Node(found.refused));
  } else {
    line.set("largest", Node(fmt::format("{:.1e}", found.largest)));
    line.set("where", Node(found.where));
    line.set("differs", texts(found.differs));
  }
  line.set("seconds", Node(found.seconds));
  std::ofstream(file, std::ios::app) << to_json(line) << "\n" << std::flush;
}

}  // namespace lehr::train::testing
