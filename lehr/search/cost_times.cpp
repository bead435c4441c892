// Times of sub-blocks on this machine.
#include <map>
#include <tuple>
#include <utility>

#include "lehr/base/error.h"
#include "lehr/config/json.h"
#include "lehr/descriptor/block_config.h"
#include "lehr/search/costs.h"
#include "lehr/search/relative_time.h"
#include "lehr/search/timed_layers.h"

namespace lehr::search {

namespace {
using pretrained::Subblock;

// Returns the first feed-forward block of the teacher, else its first attention, as a layer without another sub-block.
std::pair<int64_t, descriptor::BlockConfig> reference_layer(const SearchSpace& space) {
  const std::vector<descriptor::BlockConfig> blocks = blocks_of(space, teacher_choice(space));
  for (const bool is_ffn : {true, false}) {
    for (size_t layer = 0; layer < blocks.size(); ++layer) {
      descriptor::BlockConfig block = blocks[layer];
      if (is_ffn) {
        block.attention = descriptor::NoOpSubblock{};
      } else {
        block.ffn = descriptor::NoOpSubblock{};
      }
      if (is_ffn ? !block.ffn_is_no_op() : !block.attention_is_no_op()) {
        return {static_cast<int64_t>(layer), block};
      }
    }
  }
  fail("search: the teacher has no sub-block whose time could be measured");
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
    const Shape shape(to_json(descriptor::write_block_configs({block})), window, has_delta_net(pieces, layer, block));
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
  // A sum of many parts is steadier than one measurement of the whole.
  const int64_t more_rounds = 8 * rounds;
  return {
      .prefill = references.prefill().ratio(prefill, more_rounds) * reference.prefill,
      .decode = references.decode().ratio(decode, more_rounds) * reference.decode};
}

}  // namespace lehr::search
