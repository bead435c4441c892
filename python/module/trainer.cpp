#include "python/module/trainer.h"

#include <utility>

#include "lehr/app/models.h"
#include "lehr/base/error.h"
#include "lehr/config/config.h"
#include "lehr/memory/caching_allocator.h"
#include "lehr/mesh/rank_environment.h"
#include "lehr/plan/forecast.h"

namespace lehr::python {

namespace {
const std::map<std::string, train::Event> kEvents{
    {"step_begin", train::Event::step_begin},
    {"gradients_ready", train::Event::gradients_ready},
    {"step_end", train::Event::step_end},
    {"validation_end", train::Event::validation_end},
    {"checkpoint_requested", train::Event::checkpoint_requested}};

ConfigSources sources_of(const Trainer::Options& options) {
  ConfigSources sources{.file = {}, .overrides = options.overrides};
  if (!options.file.empty()) {
    sources.file = options.file;
  }
  return sources;
}

void require_one_process() {
  const auto beside = mesh::started_beside_others(mesh::environment_variables());
  require(
      beside.description.empty(),
      "lehr.Trainer: trains in one process, but {}; for several ranks use the program: lehr launch -n N -- train ...",
      beside.description);
}
}  // namespace

// Prefixes errors with the place of the key that they are about.
template <class Body>
auto Trainer::placed(const Body& body) {
  return with_places(sources_, body);
}

Trainer::Trainer(Options options) : options_(std::move(options)), sources_(merge_sources(sources_of(options_))) {
  require_one_process();
  keep_tensor_memory();
  const auto config = from_node<train::TrainConfig>(sources_, options_.file.empty() ? "config" : options_.file);
  placed([&] {
    const auto owned = std::make_shared<Owned>(options_.quiet);
    owned->specs = specs_of(config);
    train::RunEnvironment environment{.specs = owned->specs, .log = owned->log};
    if (options_.check) {
      environment.stop_requested = [this] {
        stopped_ = true;
        options_.check(0);  // throws after Ctrl-C, where the step is complete
        stopped_ = false;
        return false;
      };
    }
    // With the family's own task: a loss in Python need not run on meta tensors.
    environment.forecast = [task = app::models().at(config.model).build.task](
                               const train::TrainConfig& of,
                               train::TrainSpec spec,
                               const descriptor::ModelArgs& args,
                               int64_t world_size) {
      spec.build.task = task;
      return plan::forecast_step(of, spec, args, world_size);
    };
    owned->trainer = std::make_unique<train::Trainer>(config, environment);
    const auto remember = [this](const train::EventContext& context) {
      step_ = context.step;
      for (const auto& [name, value] : *context.metrics) {
        metrics_[name] = value;
      }
    };
    train::EventBus& events = owned->trainer->events();
    events.subscribe(train::Event::step_end, remember);
    events.subscribe(train::Event::validation_end, remember);
    events.subscribe(train::Event::ready, [this](const train::EventContext& context) { step_ = context.step; });
    owned_ = owned;
  });
}

// The program's families, of which the config's has a loss and data of Python.
train::TrainSpecs Trainer::specs_of(const train::TrainConfig& config) const {
  train::TrainSpecs known = app::models();
  if (!options_.loss && !options_.data) {
    return known;
  }
  train::TrainSpec spec = known.at(config.model);
  if (options_.loss) {
    require(
        !config.distillation.teacher,
        "distillation.teacher: the comparison with the teacher is the loss of the run, so `loss` would not be called; "
        "remove one of them");
    spec.build.task = [build = spec.build.task, options = options_](const train::TrainConfig& of) {
      return own_loss(build(of), options.loss, options.exchange);
    };
  }
  if (options_.data) {
    spec.build.data = [options = options_](
                          const train::TrainConfig& of,
                          const data::Tokenizer&,
                          const train::ModelIds&,
                          const std::function<void(const std::string&)>&) {
      return own_data(of, options.data, options.exchange);
    };
  }
  train::TrainSpecs specs;
  specs.add(std::move(spec));
  return specs;
}

train::Trainer& Trainer::trainer() {
  require(owned_ != nullptr, "lehr.Trainer: is closed");
  return *owned_->trainer;
}

// A hook that stepped, saved or closed would change the run under the step that calls it.
template <class Body>
auto Trainer::alone(const char* call, const Body& body) {
  require(
      !running_.exchange(true),
      "lehr.Trainer: {}() was called while the run was busy, by a hook, a loss, a data function or another thread; call "
      "it between two steps",
      call);
  const auto freed = std::shared_ptr<void>(nullptr, [&](void*) { running_ = false; });
  return body();
}

// A step that ended with an exception has read its data, and may have left gradients: neither a further step nor a
// checkpoint would be those of an uninterrupted run.
void Trainer::require_whole() {
  trainer();
  require(
      !failed_,
      "lehr.Trainer: the run ended with an exception after step {}; close() it, and make a new one, which resumes from the "
      "newest checkpoint",
      step_);
}

template <class Body>
auto Trainer::advance(const char* call, const Body& body) {
  return alone(call, [&] {
    require_whole();
    stopped_ = false;
    try {
      return placed(body);
    } catch (...) {
      failed_ = !stopped_;
      throw;
    }
  });
}

void Trainer::begin() {
  advance("begin", [&] { trainer().begin(); });
}

bool Trainer::step() {
  return advance("step", [&] {
    metrics_.clear();
    return trainer().step();
  });
}

void Trainer::save() {
  alone("save", [&] {
    require_whole();
    trainer().save_now();
  });
}

void Trainer::close() {
  alone("close", [&] { owned_.reset(); });
}

c10::Dict<std::string, double> Trainer::metrics() const {
  c10::Dict<std::string, double> metrics;
  for (const auto& [name, value] : metrics_) {
    metrics.insert(name, value);
  }
  return metrics;
}

void Trainer::on(const std::string& event, int64_t address) {
  const auto found = kEvents.find(event);
  require(found != kEvents.end(), "lehr.Trainer: '{}' is not an event", event);
  const Callback callback(address);
  trainer().events().subscribe(
      found->second, [callback](const train::EventContext& context) { callback(context.step); });
}

void Trainer::finish() {
  advance("finish", [&] { trainer().finish(); });
}

// The model and its tokenizer refer to the run, so they keep it alive.
c10::intrusive_ptr<Model> Trainer::model(const c10::intrusive_ptr<Trainer>& self) {
  train::Trainer& trainer = self->trainer();
  return c10::make_intrusive<Model>(Model::Parts{
      .model = {self->owned_, &trainer.model()},
      .args = {self->owned_, &trainer.model_args()},
      .has_adapters = trainer.config().peft.has_adapters(),
      .files = {
          .output = {},
          .dtype = train::parameter_type(trainer.config().training),
          .texts = data::tokenizer_file_contents(trainer.tokenizer())}});
}

c10::intrusive_ptr<Tokenizer> Trainer::tokenizer(const c10::intrusive_ptr<Trainer>& self) {
  return c10::make_intrusive<Tokenizer>(
      std::shared_ptr<const data::Tokenizer>(self->owned_, &self->trainer().tokenizer()));
}

std::string Trainer::config() {
  return to_toml(trainer().config());
}

}  // namespace lehr::python
