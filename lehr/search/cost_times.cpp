// Times of sub-blocks on this machine.
#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <tuple>
#include <utility>

#include "lehr/base/value_of.h"
#include "lehr/metric/throughput.h"
#include "lehr/search/costs.h"

namespace lehr::search {

namespace {
using pretrained::Subblock;

// Waits for the device that computes the tensor.
void wait_for(const at::Tensor& tensor) {
  tensor.flatten().narrow(0, 0, 1).cpu();
}

// Measures calls of `run`, which waits for its work. Short work is repeated, so that a time is at least 10 ms.
class Timer {
 public:
  explicit Timer(std::function<void()> run) : run_(std::move(run)) {
    constexpr double kShortest = 0.01;
    run_();  // warms up
    repeats_ = std::clamp<int64_t>(static_cast<int64_t>(kShortest / std::max(time(), 1e-7)), 1, 10'000);
  }

  // Returns the seconds of a call.
  double time() const {
    const double begin = metric::ThroughputMeter::steady_seconds();
    for (int64_t i = 0; i < repeats_; ++i) {
      run_();
    }
    return (metric::ThroughputMeter::steady_seconds() - begin) / static_cast<double>(repeats_);
  }

 private:
  std::function<void()> run_;
  int64_t repeats_ = 1;
};

double median_of(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// Work that is timed right before and after all other work. What slows the machine down slows both, so that their ratio
// is nearly the same at any time.
class Reference {
 public:
  explicit Reference(std::function<void()> run) : timer_(std::move(run)) {}

  // Returns the median of `rounds` ratios of the time of `run` to the reference's.
  double ratio(std::function<void()> run, int64_t rounds) {
    const Timer timer(std::move(run));
    std::vector<double> ratios;
    double before = own_time();
    for (int64_t round = 0; round < rounds; ++round) {
      const double seconds = timer.time();
      const double after = own_time();
      ratios.push_back(2 * seconds / (before + after));
      before = after;
    }
    return median_of(std::move(ratios));
  }

  // Returns the shortest time of the reference so far.
  double least() const { return least_; }

 private:
  double own_time() {
    const double seconds = timer_.time();
    least_ = std::min(least_, seconds);
    return seconds;
  }

  Timer timer_;
  double least_ = std::numeric_limits<double>::infinity();
};

nn::ModelInputs input_of(const DecoderPieces& pieces, int64_t sequences, int64_t tokens) {
  nn::ModelInputs inputs;
  const at::Tensor ids = at::arange(sequences * tokens, at::kLong) * 7919 % pieces.args().vocab_size();
  inputs.input_ids = ids.view({sequences, tokens}).to(pieces.device());
  return inputs;
}

// The inputs of a prefill, and of a decoding step: the last token of each sequence.
struct TimedInputs {
  TimedInputs(const DecoderPieces& pieces, const descriptor::Workload& work)
      : prefill(input_of(pieces, 1, work.num_tokens)),
        decode(input_of(pieces, work.num_sequences, 1)),
        cached_tokens(work.num_tokens - 1) {}

  nn::ModelInputs prefill;
  nn::ModelInputs decode;
  int64_t cached_tokens;
};

// What a layer keeps of a token: keys and values, or the latent and its rotated part.
struct CachedToken {
  int64_t heads = 0, key_size = 0, value_size = 0;
  std::optional<int64_t> window = {};  // of the tokens that it keeps

  at::Tensor values(const DecoderPieces& pieces, int64_t sequences, int64_t tokens, int64_t size) const {
    return at::full({sequences, tokens, heads, size}, 0.02, at::TensorOptions(pieces.device()).dtype(pieces.dtype()));
  }
};

descriptor::DecoderForm form_of(const DecoderPieces& pieces) {
  return value_of(pieces.args().decoder_form(), "decoder_form");
}

bool has_delta_net(const DecoderPieces& pieces, int64_t layer, const descriptor::BlockConfig& block) {
  return std::holds_alternative<descriptor::AttentionSubblock>(block.attention) &&
         form_of(pieces).has_states(static_cast<size_t>(layer));
}

// Returns nothing for a layer that keeps no tokens.
std::optional<CachedToken> cached_token(
    const DecoderPieces& pieces, int64_t layer, const descriptor::BlockConfig& block) {
  const auto* attention = std::get_if<descriptor::AttentionSubblock>(&block.attention);
  if (attention == nullptr || has_delta_net(pieces, layer, block)) {
    return std::nullopt;
  }
  const descriptor::DecoderForm form = form_of(pieces);
  if (const auto& latent = form.latent_attention) {
    return CachedToken{.heads = 1, .key_size = latent->kv_lora_rank, .value_size = latent->qk_rope_head_dim};
  }
  const int64_t window = form.window(static_cast<size_t>(layer), *attention);
  return CachedToken{
      .heads = attention->num_key_value_heads,
      .key_size = form.head_dim,
      .value_size = form.head_dim,
      .window = window > 0 ? std::optional(window) : std::nullopt};
}

// Hidden states of the shape that a layer takes.
at::Tensor hidden_states_of(const DecoderPieces& pieces, const nn::ModelInputs& inputs) {
  const int64_t size = form_of(pieces).hidden_size;
  const at::Tensor values = at::linspace(-1, 1, inputs.input_ids.numel() * size, at::kFloat);
  return values.view({inputs.input_ids.size(0), inputs.input_ids.size(1), size})
      .to(at::TensorOptions(pieces.device()).dtype(pieces.dtype()));
}

// A layer with its cache. Each step runs with a copy of the cache, so that its length stays the same.
class DecodingLayer {
 public:
  DecodingLayer(
      const DecoderPieces& pieces,
      int64_t layer,
      const descriptor::BlockConfig& block,
      Piece piece,
      const TimedInputs& inputs)
      : piece_(std::move(piece)) {
    if (has_delta_net(pieces, layer, block) && inputs.cached_tokens > 0) {  // a state, alike after any number of tokens
      nn::ModelInputs first = inputs.decode;
      first.caches = &caches_;
      run_piece(piece_, first, hidden_states_of(pieces, first));
    }
    const auto cached = cached_token(pieces, layer, block);
    // In two parts, so that the cache has grown and no step reallocates it.
    for (const int64_t tokens : {inputs.cached_tokens - 1, int64_t{1}}) {
      if (cached && tokens > 0 && inputs.cached_tokens > 0) {
        const int64_t sequences = inputs.decode.input_ids.size(0);
        caches_.front().append(
            cached->values(pieces, sequences, tokens, cached->key_size),
            cached->values(pieces, sequences, tokens, cached->value_size),
            cached->window);
      }
    }
  }

  at::Tensor step(const TimedInputs& inputs, const at::Tensor& hidden_states) const {
    nn::KeyValueCaches caches = caches_;
    nn::ModelInputs own = inputs.decode;
    own.caches = &caches;
    return run_piece(piece_, own, hidden_states);
  }

 private:
  Piece piece_;
  nn::KeyValueCaches caches_{1};  // of the piece's only layer
};

// Copies of a layer, with real numbers as weights: denormal ones would be slow. They run one after another, as many as
// the model has layers if memory allows, so that weights come from where they do in a model, and not from the cache of
// the call before.
std::vector<Piece> copies_of(
    const DecoderPieces& pieces, int64_t layer, const descriptor::BlockConfig& block, const TimedInputs& inputs) {
  constexpr int64_t kMost = 16;
  constexpr int64_t kCopiesBytes = int64_t{1} << 29;
  std::vector<Piece> copies{pieces.layer(layer, block)};
  if (!copies.front()) {
    return {};
  }
  int64_t bytes = 1;
  for (const auto& [name, parameter] : nn::named_parameters(*copies.front())) {
    bytes += static_cast<int64_t>(parameter->value().nbytes());
  }
  if (const auto cached = cached_token(pieces, layer, block)) {  // in a cache that has doubled
    const int64_t tokens = std::min(inputs.cached_tokens, cached->window.value_or(inputs.cached_tokens));
    bytes += 2 * inputs.decode.input_ids.size(0) * tokens * cached->heads * (cached->key_size + cached->value_size) *
             static_cast<int64_t>(c10::elementSize(pieces.dtype()));
  }
  const int64_t most = std::clamp<int64_t>(pieces.num_layers(), 2, kMost);
  const int64_t count = std::clamp<int64_t>(kCopiesBytes / bytes, 2, most);
  while (static_cast<int64_t>(copies.size()) < count) {
    copies.push_back(pieces.layer(layer, block));
  }
  for (const Piece& copy : copies) {
    for (const auto& [name, parameter] : nn::named_parameters(*copy)) {
      const at::Tensor value = parameter->value();
      value.normal_(0, 0.02);
    }
  }
  return copies;
}

// Copies of a layer that run one after another on the inputs of a prefill, and of a decoding step.
class LayersInRow {
 public:
  LayersInRow(
      const DecoderPieces& pieces, int64_t layer, const descriptor::BlockConfig& block, const TimedInputs& inputs)
      : inputs_(inputs),
        copies_(copies_of(pieces, layer, block, inputs)),
        all_(hidden_states_of(pieces, inputs.prefill)),
        last_(hidden_states_of(pieces, inputs.decode)) {
    for (const Piece& copy : copies_) {
      decoding_.emplace_back(pieces, layer, block, copy, inputs);
    }
  }

  // Returns their number; 0 for a layer without sub-blocks.
  size_t size() const { return copies_.size(); }

  void prefill() const {
    run([&](size_t copy) { return run_piece(copies_[copy], inputs_.prefill, all_); });
  }
  void decode() const {
    run([&](size_t copy) { return decoding_[copy].step(inputs_, last_); });
  }

 private:
  void run(const std::function<at::Tensor(size_t copy)>& run_one) const {
    at::Tensor last;
    for (size_t copy = 0; copy < size(); ++copy) {
      last = run_one(copy);
    }
    wait_for(last);
  }

  const TimedInputs& inputs_;
  std::vector<Piece> copies_;
  std::vector<DecodingLayer> decoding_;
  at::Tensor all_, last_;
};

// Returns the first layer of the teacher that has a feed-forward block, else an attention, with that sub-block only.
std::pair<int64_t, descriptor::BlockConfig> reference_layer(const SearchSpace& space) {
  const std::vector<descriptor::BlockConfig> blocks = blocks_of(space, teacher_choice(space));
  const auto is_no_op = [](const auto& subblock) { return std::holds_alternative<descriptor::NoOpSubblock>(subblock); };
  for (size_t layer = 0; layer < blocks.size(); ++layer) {
    if (!is_no_op(blocks[layer].ffn)) {
      return {static_cast<int64_t>(layer), {.attention = descriptor::NoOpSubblock{}, .ffn = blocks[layer].ffn}};
    }
  }
  return {0, blocks.front()};
}

// What all times are taken relative to: a layer of the teacher.
class References {
 public:
  References(const Library& library, const TimedInputs& inputs)
      : References(library.pieces(), reference_layer(library.space()), inputs) {}
  References(const References&) = delete;
  References& operator=(const References&) = delete;

  Reference& prefill() { return prefill_; }
  Reference& decode() { return decode_; }

 private:
  References(
      const DecoderPieces& pieces, const std::pair<int64_t, descriptor::BlockConfig>& layer, const TimedInputs& inputs)
      : layers_(pieces, layer.first, layer.second, inputs),
        prefill_([this] { layers_.prefill(); }),
        decode_([this] { layers_.decode(); }) {}

  LayersInRow layers_;
  Reference prefill_, decode_;
};

// The times of that layer with this shape, in a model of such layers, as ratios to the reference's.
PartSeconds ratios_of_layer(
    References& references,
    const DecoderPieces& pieces,
    int64_t layer,
    const descriptor::BlockConfig& block,
    const TimedInputs& inputs,
    int64_t rounds) {
  const LayersInRow layers(pieces, layer, block, inputs);
  if (layers.size() == 0) {
    return {};
  }
  const auto count = static_cast<double>(layers.size());
  return {
      .prefill = references.prefill().ratio([&] { layers.prefill(); }, rounds) / count,
      .decode = references.decode().ratio([&] { layers.decode(); }, rounds) / count};
}

// The last token's logits of each sequence.
at::Tensor logits_of(const Piece& head, const nn::ModelInputs& inputs, const at::Tensor& hidden_states) {
  return head->logits(run_piece(head, inputs, hidden_states).narrow(1, -1, 1));
}

// The same of the parts that every child has: embeddings, final norm and head.
PartSeconds ratios_of_fixed(References& references, const Library& library, const TimedInputs& inputs, int64_t rounds) {
  const Piece embeddings = library.embeddings(), head = library.head();
  const auto measure = [&](Reference& reference, const nn::ModelInputs& of) {
    const at::Tensor hidden_states = run_piece(embeddings, of, {});
    return reference.ratio([&] { wait_for(run_piece(embeddings, of, {})); }, rounds) +
           reference.ratio([&] { wait_for(logits_of(head, of, hidden_states)); }, rounds);
  };
  return {
      .prefill = measure(references.prefill(), inputs.prefill), .decode = measure(references.decode(), inputs.decode)};
}

void set(Cost& cost, const PartSeconds& ratios, const PartSeconds& reference) {
  cost.prefill_seconds = ratios.prefill * reference.prefill;
  cost.decode_seconds = ratios.decode * reference.decode;
}

// What takes one time wherever it stands: the shape of a layer, its window, and whether it has gated DeltaNet.
using Shape = std::tuple<std::string, int64_t, bool>;

// A shape that is measured once, for all costs that it has a part in.
struct TimedShape {
  int64_t layer = 0;  // the first with it
  descriptor::BlockConfig block;
  std::vector<Cost*> costs;
};

// Returns the shapes of all variants, in the order of their first layers.
std::vector<TimedShape> shapes_of(CostTable& table, const Library& library) {
  const DecoderPieces& pieces = library.pieces();
  const descriptor::DecoderForm form = form_of(pieces);
  std::vector<TimedShape> shapes;
  std::map<Shape, size_t> places;
  const auto add = [&](int64_t layer, const descriptor::BlockConfig& block, Cost& cost) {
    const auto* attention = std::get_if<descriptor::AttentionSubblock>(&block.attention);
    const int64_t window = attention != nullptr ? form.window(static_cast<size_t>(layer), *attention) : 0;
    const Shape shape(descriptor::describe(block), window, has_delta_net(pieces, layer, block));
    const auto [place, is_new] = places.try_emplace(shape, shapes.size());
    if (is_new) {
      shapes.push_back({.layer = layer, .block = block, .costs = {}});
    }
    shapes[place->second].costs.push_back(&cost);
  };
  for (size_t layer = 0; layer < library.space().size(); ++layer) {
    const LayerSpace& variants = library.space()[layer];
    const auto number = static_cast<int64_t>(layer);
    for (size_t i = 0; i < variants.attention.size(); ++i) {
      add(number,
          {.attention = variants.attention[i].block.attention, .ffn = descriptor::NoOpSubblock{}},
          table.attention[layer][i]);
    }
    for (size_t i = 0; i < variants.ffn.size(); ++i) {
      add(number, {.attention = descriptor::NoOpSubblock{}, .ffn = variants.ffn[i].block.ffn}, table.ffn[layer][i]);
    }
  }
  return shapes;
}
}  // namespace

void measure_times(
    CostTable& table,
    const Library& library,
    const descriptor::Workload& work,
    int64_t rounds,
    const std::function<void(int64_t done, int64_t all)>& progress) {
  const at::NoGradGuard no_grad;
  const TimedInputs inputs(library.pieces(), work);
  References references(library, inputs);
  const PartSeconds fixed = ratios_of_fixed(references, library, inputs, rounds);
  const std::vector<TimedShape> shapes = shapes_of(table, library);
  std::vector<PartSeconds> ratios;
  progress(0, static_cast<int64_t>(shapes.size()));
  for (const TimedShape& shape : shapes) {
    ratios.push_back(ratios_of_layer(references, library.pieces(), shape.layer, shape.block, inputs, rounds));
    progress(static_cast<int64_t>(ratios.size()), static_cast<int64_t>(shapes.size()));
  }
  table.reference = {.prefill = references.prefill().least(), .decode = references.decode().least()};
  set(table.fixed, fixed, table.reference);
  for (size_t i = 0; i < shapes.size(); ++i) {
    for (Cost* cost : shapes[i].costs) {
      set(*cost, ratios[i], table.reference);
    }
  }
}

PartSeconds measure_child_seconds(
    const Library& library,
    const Choice& choice,
    const descriptor::Workload& work,
    int64_t rounds,
    const PartSeconds& reference) {
  const at::NoGradGuard no_grad;
  const TimedInputs inputs(library.pieces(), work);
  References references(library, inputs);
  const Piece embeddings = library.embeddings(), head = library.head();
  const std::vector<descriptor::BlockConfig> blocks = blocks_of(library.space(), choice);
  std::vector<Piece> layers;
  std::vector<DecodingLayer> decoding;
  for (size_t i = 0; i < blocks.size(); ++i) {
    const auto layer = static_cast<int64_t>(i);
    const Piece piece = library.layer(layer, choice.of(layer, Subblock::attention), choice.of(layer, Subblock::ffn));
    if (piece) {
      layers.push_back(piece);
      decoding.emplace_back(library.pieces(), layer, blocks[i], piece, inputs);
    }
  }
  const auto prefill = [&] {
    at::Tensor hidden_states = run_piece(embeddings, inputs.prefill, {});
    for (const Piece& layer : layers) {
      hidden_states = run_piece(layer, inputs.prefill, hidden_states);
    }
    wait_for(logits_of(head, inputs.prefill, hidden_states));
  };
  const auto decode = [&] {
    at::Tensor hidden_states = run_piece(embeddings, inputs.decode, {});
    for (const DecodingLayer& layer : decoding) {
      hidden_states = layer.step(inputs, hidden_states);
    }
    wait_for(logits_of(head, inputs.decode, hidden_states));
  };
  return {
      .prefill = references.prefill().ratio(prefill, rounds) * reference.prefill,
      .decode = references.decode().ratio(decode, rounds) * reference.decode};
}

}  // namespace lehr::search
