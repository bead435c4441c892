#include "lehr/shard/whole_tensors.h"

#include <numeric>

#include "lehr/base/error.h"
#include "lehr/memory/side_stream.h"
#include "lehr/shard/ownership.h"

namespace lehr::shard {

namespace {
using optim::TensorPart;
using optim::WholeTensorWork;

// The region of the parameter that a member of the stage's group holds.
Box box_of(const nn::Parameter& parameter, int64_t member, const mesh::DistributedContext& context) {
  const std::vector<std::string> axes = domain_axes(parameter);  // as the group's members are numbered, slowest first
  std::unordered_map<std::string, int64_t> index;
  for (auto axis = axes.rbegin(); axis != axes.rend(); ++axis) {
    index[*axis] = member % context.size(*axis);
    member /= context.size(*axis);
  }
  Box box = whole_box(parameter.shape());
  for (const auto& [axis, placement] : parameter.layout().axes()) {
    if (placement.kind == Placement::Kind::shard) {
      invariant(index.contains(axis), "parameter {}: is sharded on axis {}", parameter.name(), axis);
      Range& range = box[static_cast<size_t>(placement.dim)];
      range = chunk(range, index.at(axis), context.size(axis));
    }
  }
  return box;
}

int64_t numel_of(const Box& box) {
  return c10::multiply_integers(shape_of(box));
}

// A region of a piece that travels to or from another member.
struct Message {
  size_t piece = 0;
  Box part = {};
};

// The messages of one wave, by member, in the order of the buffers.
struct Messages {
  std::vector<std::vector<Message>> out, in;
  bool any = false;  // on any member

  explicit Messages(int64_t members) : out(static_cast<size_t>(members)), in(static_cast<size_t>(members)) {}

  static std::vector<int64_t> sizes(const std::vector<std::vector<Message>>& messages) {
    std::vector<int64_t> sizes;
    for (const auto& list : messages) {
      sizes.push_back(0);
      for (const Message& message : list) {
        sizes.back() += numel_of(message.part);
      }
    }
    return sizes;
  }
};

struct Wave {
  std::vector<size_t> own = {};  // pieces of this rank
  Messages gather, scatter;

  explicit Wave(int64_t members) : gather(members), scatter(members) {}

  void add(size_t number, const Piece& piece, const SpreadTensor& tensor, int64_t rank, int64_t replicas) {
    const bool mine = piece.owner == rank;
    gather.any = gather.any || piece.gathered;
    scatter.any = scatter.any || piece.spread;
    if (mine) {
      own.push_back(number);
    }
    for (int64_t member = 0; member < static_cast<int64_t>(tensor.boxes.size()); ++member) {
      const Box part = part_of(tensor, piece, member);
      if (member == piece.owner || part.empty() || (!mine && member != rank)) {
        continue;
      }
      const auto other = static_cast<size_t>(mine ? member : piece.owner);
      if (piece.gathered && source_of(tensor, piece, member, replicas) == member) {
        (mine ? gather.in : gather.out)[other].push_back({.piece = number, .part = part});
      }
      (mine ? scatter.out : scatter.in)[other].push_back({.piece = number, .part = part});
    }
  }
};

// A started exchange of one wave.
struct InFlight {
  at::Tensor received = {}, sent = {};
  mesh::Pending pending = {};
};
}  // namespace

struct MeshWholeTensors::Prepared {
  std::vector<std::string> names = {};
  int64_t dims = 0;
  std::vector<SpreadTensor> tensors = {};
  OwnerPlan plan = {};
  std::vector<std::vector<size_t>> local =
      {};  // this rank's pieces that are not sent, in lists that are computed together
  std::vector<Wave> waves = {};
};

// The tensors of one call.
class MeshWholeTensors::Exchange {
 public:
  Exchange(const mesh::Group& group, const Prepared& prepared, std::vector<at::Tensor> tensors)
      : group_(group), prepared_(prepared), tensors_(std::move(tensors)) {}

  void run(const WholeTensorWork& work) {
    const std::vector<Wave>& waves = prepared_.waves;
    InFlight gathering = waves.empty() ? InFlight() : start_gather(waves.front());
    for (const std::vector<size_t>& list : prepared_.local) {  // while the first wave is on its way
      std::vector<at::Tensor> wholes;
      for (const size_t piece : list) {
        wholes.push_back(here(piece, part_of(piece, group_.rank())));
      }
      work.compute(wholes);
      for (size_t i = 0; i < list.size(); ++i) {
        here(list[i], part_of(list[i], group_.rank())).copy_(wholes[i]);
      }
    }
    InFlight scattering;
    for (size_t i = 0; i < waves.size(); ++i) {
      std::vector<at::Tensor> wholes = finish_gather(waves[i], gathering);
      gathering = i + 1 < waves.size() ? start_gather(waves[i + 1]) : InFlight();
      if (!wholes.empty()) {
        work.compute(wholes);
      }
      InFlight results = start_scatter(waves[i], wholes);
      if (i > 0) {
        finish_scatter(waves[i - 1], scattering);
      }
      scattering = std::move(results);
    }
    if (!waves.empty()) {
      finish_scatter(waves.back(), scattering);
    }
  }

 private:
  const Piece& piece_at(size_t piece) const { return prepared_.plan.pieces[piece]; }
  Box part_of(size_t piece, int64_t member) const {
    return shard::part_of(prepared_.tensors[piece_at(piece).tensor], piece_at(piece), member);
  }

  // This rank's tensor of that part, which it holds.
  at::Tensor here(size_t piece, const Box& part) const {
    const Piece& one = piece_at(piece);
    const Box& box = prepared_.tensors[one.tensor].boxes[static_cast<size_t>(group_.rank())];
    at::Tensor found = tensors_[one.tensor];
    for (size_t d = 0; d < one.index.size(); ++d) {
      found = found.select(0, one.index[d] - box[d].begin);
    }
    invariant(found.numel() == numel_of(part), "whole tensors: a part does not fit");
    return found;
  }

  template <class View>
  InFlight start(const Messages& messages, const View& view) const {
    InFlight flight;
    if (!messages.any) {
      return flight;
    }
    const std::vector<int64_t> out = Messages::sizes(messages.out), in = Messages::sizes(messages.in);
    const auto options = tensors_.front().options();
    flight.sent = at::empty({std::accumulate(out.begin(), out.end(), int64_t{0})}, options);
    flight.received = at::empty({std::accumulate(in.begin(), in.end(), int64_t{0})}, options);
    int64_t offset = 0;
    for (const auto& list : messages.out) {
      for (const Message& message : list) {
        const int64_t numel = numel_of(message.part);
        flight.sent.narrow(0, offset, numel).view(shape_of(message.part)).copy_(view(message));
        offset += numel;
      }
    }
    flight.pending = group_.start_all_to_all(flight.received, flight.sent, in, out);
    return flight;
  }

  template <class View>
  void finish(const Messages& messages, InFlight& flight, const View& view) const {
    flight.pending.wait();
    int64_t offset = 0;
    for (const auto& list : messages.in) {
      for (const Message& message : list) {
        const int64_t numel = numel_of(message.part);
        view(message).copy_(flight.received.narrow(0, offset, numel).view(shape_of(message.part)));
        offset += numel;
      }
    }
    flight = InFlight();
  }

  InFlight start_gather(const Wave& wave) const {
    return start(wave.gather, [&](const Message& message) { return here(message.piece, message.part); });
  }

  // Returns this rank's whole tensors.
  std::vector<at::Tensor> finish_gather(const Wave& wave, InFlight& flight) const {
    std::vector<at::Tensor> wholes;
    std::unordered_map<size_t, at::Tensor> by_piece;
    for (const size_t piece : wave.own) {
      const auto& shape = prepared_.tensors[piece_at(piece).tensor].shape;
      const std::vector<int64_t> sizes(shape.end() - prepared_.dims, shape.end());
      wholes.push_back(at::empty(sizes, tensors_.front().options()));
      by_piece[piece] = wholes.back();
      if (const Box part = part_of(piece, group_.rank()); !part.empty()) {
        narrow_to(wholes.back(), part).copy_(here(piece, part));
      }
    }
    finish(wave.gather, flight, [&](const Message& message) {
      return narrow_to(by_piece.at(message.piece), message.part);
    });
    return wholes;
  }

  InFlight start_scatter(const Wave& wave, const std::vector<at::Tensor>& results) const {
    std::unordered_map<size_t, at::Tensor> by_piece;
    for (size_t i = 0; i < wave.own.size(); ++i) {
      by_piece[wave.own[i]] = results[i];
      if (const Box part = part_of(wave.own[i], group_.rank()); !part.empty()) {
        here(wave.own[i], part).copy_(narrow_to(results[i], part));
      }
    }
    return start(
        wave.scatter, [&](const Message& message) { return narrow_to(by_piece.at(message.piece), message.part); });
  }

  void finish_scatter(const Wave& wave, InFlight& flight) const {
    finish(wave.scatter, flight, [&](const Message& message) { return here(message.piece, message.part); });
  }

  const mesh::Group& group_;
  const Prepared& prepared_;
  std::vector<at::Tensor> tensors_;
};

MeshWholeTensors::MeshWholeTensors(
    mesh::DistributedContext& context,
    const std::vector<nn::NamedParameter>& parameters,
    std::optional<at::Device> device,
    int64_t wave_elements)
    // The group is the one of GradientSync.
    : context_(context),
      group_(context.group({mesh::axis::dp_replicate, mesh::axis::dp_shard, mesh::axis::cp, mesh::axis::tp})),
      device_(device),
      wave_elements_(wave_elements) {
  for (const auto& [name, parameter] : parameters) {
    parameters_.emplace(name, parameter);
  }
}

MeshWholeTensors::~MeshWholeTensors() = default;

SpreadTensor MeshWholeTensors::spread(const nn::Parameter& parameter) const {
  SpreadTensor tensor{.shape = parameter.shape(), .boxes = {}};
  for (int64_t member = 0; member < group_.size(); ++member) {
    tensor.boxes.push_back(box_of(parameter, member, context_));
  }
  invariant(
      tensor.boxes[static_cast<size_t>(group_.rank())] == parameter.box(),
      "parameter {}: its layout does not give its box {}",
      parameter.name(),
      describe(parameter.box()));
  return tensor;
}

MeshWholeTensors::Prepared& MeshWholeTensors::prepare(
    const std::vector<std::string>& names, const WholeTensorWork& work) {
  for (const auto& known : prepared_) {
    if (known->names == names && known->dims == work.dims) {
      return *known;
    }
  }
  if (prepared_.size() == kMostPlans) {
    prepared_.clear();  // other gradients are missing at every step: the names of no two calls are the same
  }
  auto made = std::make_unique<Prepared>(Prepared{.names = names, .dims = work.dims});
  for (const std::string& name : names) {
    const auto found = parameters_.find(name);
    require(found != parameters_.end(), "{}: is not a parameter of this stage, so its whole tensor is not known", name);
    made->tensors.push_back(spread(*found->second));
  }
  made->plan = plan_owners(made->tensors, work.dims, work.cost, group_.size(), wave_elements_);
  const auto& pieces = made->plan.pieces;
  const int64_t replicas = context_.size(mesh::axis::dp_replicate);
  int64_t elements = wave_elements_;
  for (size_t i = 0; i < pieces.size(); ++i) {
    if (pieces[i].owner == group_.rank() && !pieces[i].sent()) {
      if (made->local.empty() || elements + pieces[i].numel > wave_elements_) {
        made->local.emplace_back();
        elements = 0;
      }
      made->local.back().push_back(i);
      elements += pieces[i].numel;
    }
  }
  for (const std::vector<size_t>& list : made->plan.waves) {
    Wave wave(group_.size());
    for (const size_t piece : list) {
      wave.add(piece, pieces[piece], made->tensors[pieces[piece].tensor], group_.rank(), replicas);
    }
    made->waves.push_back(std::move(wave));
  }
  prepared_.push_back(std::move(made));
  return *prepared_.back();
}

const OwnerPlan& MeshWholeTensors::plan(const std::vector<std::string>& names, const WholeTensorWork& work) {
  return prepare(names, work).plan;
}

void MeshWholeTensors::apply(const std::vector<TensorPart>& parts, const WholeTensorWork& work) {
  if (parts.empty()) {
    return;
  }
  const at::NoGradGuard no_grad;
  std::vector<std::string> names;
  std::vector<at::Tensor> tensors;
  for (const TensorPart& part : parts) {
    names.push_back(part.name);
    tensors.push_back(device_ ? to_device_pinned(part.tensor, *device_) : part.tensor);
  }
  Exchange(group_, prepare(names, work), tensors).run(work);
  for (size_t i = 0; i < parts.size(); ++i) {
    if (!tensors[i].is_same(parts[i].tensor)) {
      parts[i].tensor.copy_(tensors[i]);
    }
  }
}

}  // namespace lehr::shard
