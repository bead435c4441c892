#include "lehr/search/costs.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <map>

#include "lehr/base/error.h"
#include "lehr/base/log.h"
#include "lehr/base/value_of.h"

namespace lehr::search {

namespace {
using train::Subblock;

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Waits for the device that computes the tensor.
void wait_for(const at::Tensor& tensor) {
  tensor.flatten().narrow(0, 0, 1).cpu();
}

// Times `run(n)`, which does the same work n times and waits for it, for n = N and 2 N, and returns the slope between
// the shortest times of both, as noise only adds to a time. Short work is repeated, so that a time is at least 20 ms.
double seconds_per_call(const std::function<void(int64_t count)>& run, int64_t count, int64_t rounds) {
  constexpr double kShortest = 0.02;
  run(2 * count);
  int64_t repeats = 1;
  const auto time = [&](int64_t calls) {
    const double begin = now();
    for (int64_t i = 0; i < repeats; ++i) {
      run(calls);
    }
    return now() - begin;
  };
  repeats = std::clamp<int64_t>(static_cast<int64_t>(kShortest / std::max(time(count), 1e-7)), 1, 10'000);
  double shorter = std::numeric_limits<double>::infinity(), longer = shorter;
  for (int64_t round = 0; round < rounds; ++round) {
    shorter = std::min(shorter, time(count));
    longer = std::min(longer, time(2 * count));
  }
  return std::max((longer - shorter) / static_cast<double>(repeats * count), 1e-9);
}

// The same for work without parts that repeat.
double seconds_per_call(const std::function<void()>& run, int64_t rounds) {
  return seconds_per_call(
      [&](int64_t count) {
        for (int64_t i = 0; i < count; ++i) {
          run();
        }
      },
      1,
      rounds);
}

// The time of a layer in a model of such layers. N and 2 N copies run one after another, so that weights come from
// memory as they do in a model, and not from the cache of the call before.
double seconds_of_layer(
    const DecoderPieces& pieces,
    const descriptor::BlockConfig& block,
    const nn::ModelInputs& inputs,
    const at::Tensor& hidden_states,
    int64_t rounds) {
  constexpr int64_t kCopies = 8;
  constexpr int64_t kCopiesBytes = int64_t{1} << 29;
  std::vector<Piece> copies{pieces.layer(0, block)};
  if (!copies.front()) {
    return 0;
  }
  int64_t bytes = 0;
  for (const auto& [name, parameter] : nn::named_parameters(*copies.front())) {
    bytes += static_cast<int64_t>(parameter->value().nbytes());
  }
  const int64_t count = std::clamp<int64_t>(kCopiesBytes / (2 * std::max<int64_t>(bytes, 1)), 1, kCopies);
  while (static_cast<int64_t>(copies.size()) < 2 * count) {
    copies.push_back(pieces.layer(0, block));
  }
  for (const Piece& copy : copies) {
    for (const auto& [name, parameter] : nn::named_parameters(*copy)) {
      const at::Tensor value = parameter->value();
      value.normal_(0, 0.02);  // real numbers: denormal ones would be slow
    }
  }
  return seconds_per_call(
      [&](int64_t layers) {
        at::Tensor last;
        for (int64_t i = 0; i < layers; ++i) {
          last = run_piece(copies[static_cast<size_t>(i)], inputs, hidden_states);
        }
        wait_for(last);
      },
      count,
      rounds);
}

nn::ModelInputs random_input(const DecoderPieces& pieces, int64_t tokens) {
  nn::ModelInputs inputs;
  const at::Tensor ids = at::arange(tokens, at::kLong) * 7919 % pieces.args().vocab_size();
  inputs.input_ids = ids.view({1, tokens}).to(pieces.device());
  return inputs;
}
}  // namespace

const char* name_of(CostKind kind) {
  switch (kind) {
    case CostKind::parameters:
      return "parameters";
    case CostKind::active_parameters:
      return "active_parameters";
    case CostKind::memory:
      return "memory";
    case CostKind::kv_cache:
      return "kv_cache";
    case CostKind::prefill_flops:
      return "prefill_flops";
    case CostKind::decode_flops:
      return "decode_flops";
    case CostKind::prefill_seconds:
      return "prefill_seconds";
  }
  return "";
}

std::string with_unit(CostKind kind, double value) {
  switch (kind) {
    case CostKind::memory:
    case CostKind::kv_cache:
      return human_bytes(value);
    case CostKind::prefill_seconds:
      return fmt::format("{:.3g} ms", 1e3 * value);
    default:
      return human_count(value);
  }
}

double Cost::of(CostKind kind) const {
  switch (kind) {
    case CostKind::parameters:
      return static_cast<double>(account.num_parameters);
    case CostKind::active_parameters:
      return static_cast<double>(account.active_parameters);
    case CostKind::memory:
      return static_cast<double>(account.weight_bytes) + account.kv_cache_bytes;
    case CostKind::kv_cache:
      return account.kv_cache_bytes;
    case CostKind::prefill_flops:
      return account.prefill_flops;
    case CostKind::decode_flops:
      return account.decode_flops;
    case CostKind::prefill_seconds:
      return prefill_seconds;
  }
  return 0;
}

Cost& Cost::operator+=(const Cost& other) {
  account += other.account;
  prefill_seconds += other.prefill_seconds;
  return *this;
}

const Cost& CostTable::of(const Place& place) const {
  return (place.subblock == Subblock::attention ? attention : ffn)
      .at(static_cast<size_t>(place.layer))
      .at(place.variant);
}

Cost CostTable::of(const Choice& choice) const {
  Cost sum = fixed;
  for (size_t layer = 0; layer < attention.size(); ++layer) {
    sum += attention[layer].at(choice.attention[layer]);
    sum += ffn[layer].at(choice.ffn[layer]);
  }
  return sum;
}

CostTable count_costs(const Library& library, const descriptor::Workload& work) {
  const DecoderPieces& pieces = library.pieces();
  const auto form = pieces.args().decoder_form();
  require(
      form.has_value(), "search: {} models have no closed-form costs, which budgets need", pieces.args().model_type());
  CostTable table;
  std::vector<descriptor::BlockConfig> blocks = pieces.blocks();
  const auto account = [&] { return descriptor::account_for(value_of(form, "decoder_form"), blocks, work); };
  const descriptor::ModelAccount whole = account();
  table.fixed.account = whole.embeddings;
  table.fixed.account += whole.head;
  for (size_t layer = 0; layer < blocks.size(); ++layer) {
    const descriptor::BlockConfig own = blocks[layer];
    table.attention.emplace_back();
    table.ffn.emplace_back();
    for (const Variant& variant : library.space()[layer].attention) {
      blocks[layer].attention = variant.block.attention;
      table.attention.back().push_back({.account = account().layers[layer].attention});
    }
    blocks[layer] = own;
    for (const Variant& variant : library.space()[layer].ffn) {
      blocks[layer].ffn = variant.block.ffn;
      table.ffn.back().push_back({.account = account().layers[layer].ffn});
    }
    blocks[layer] = own;
  }
  return table;
}

void measure_times(
    CostTable& table,
    const Library& library,
    const descriptor::Workload& work,
    int64_t rounds,
    const std::function<void(int64_t done, int64_t all)>& progress) {
  const at::NoGradGuard no_grad;
  const DecoderPieces& pieces = library.pieces();
  const nn::ModelInputs inputs = random_input(pieces, work.num_tokens);
  const Piece embeddings = library.embeddings(), head = library.head();
  const at::Tensor hidden_states = run_piece(embeddings, inputs, {});
  table.fixed.prefill_seconds = seconds_per_call([&] { wait_for(run_piece(embeddings, inputs, {})); }, rounds) +
                                seconds_per_call(
                                    [&] {
                                      const at::Tensor last = run_piece(head, inputs, hidden_states).narrow(1, -1, 1);
                                      wait_for(head->logits(last));
                                    },
                                    rounds);
  std::map<std::string, double> known;  // by the shape of the layer
  const auto measure = [&](const descriptor::BlockConfig& block) {
    const std::string shape = descriptor::describe(block);
    if (!known.contains(shape)) {
      known[shape] = seconds_of_layer(pieces, block, inputs, hidden_states, rounds);
    }
    return known.at(shape);
  };
  const auto all = static_cast<int64_t>(library.space().size());
  for (int64_t layer = 0; layer < all; ++layer) {
    const auto index = static_cast<size_t>(layer);
    const LayerSpace& variants = library.space()[index];
    for (size_t i = 0; i < variants.attention.size(); ++i) {
      table.attention[index][i].prefill_seconds =
          measure({.attention = variants.attention[i].block.attention, .ffn = descriptor::NoOpSubblock{}});
    }
    for (size_t i = 0; i < variants.ffn.size(); ++i) {
      table.ffn[index][i].prefill_seconds =
          measure({.attention = descriptor::NoOpSubblock{}, .ffn = variants.ffn[i].block.ffn});
    }
    progress(layer + 1, all);
  }
}

double measure_child_seconds(
    const Library& library, const Choice& choice, const descriptor::Workload& work, int64_t rounds) {
  const at::NoGradGuard no_grad;
  const nn::ModelInputs inputs = random_input(library.pieces(), work.num_tokens);
  const Piece embeddings = library.embeddings(), head = library.head();
  std::vector<Piece> layers;
  for (int64_t layer = 0; layer < library.pieces().num_layers(); ++layer) {
    layers.push_back(library.layer(layer, choice.of(layer, Subblock::attention), choice.of(layer, Subblock::ffn)));
  }
  return seconds_per_call(
      [&] {
        at::Tensor hidden_states = run_piece(embeddings, inputs, {});
        for (const Piece& layer : layers) {
          hidden_states = run_piece(layer, inputs, hidden_states);
        }
        wait_for(head->logits(run_piece(head, inputs, hidden_states).narrow(1, -1, 1)));
      },
      rounds);
}

}  // namespace lehr::search
