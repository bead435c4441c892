// The module contract: a torch module that is constructed without memory and filled later.
//
// LibTorch cannot turn a meta tensor into a real one in place, so a module declares each parameter with its name, its
// global shape and the address of the member that `forward` reads: the slot. A slot holds a meta tensor, the parameter
// itself, or another form of it that is in use (a cast, or the unsharded parameter). The life cycle of a model is
// construct (shapes only) -> lay out -> materialize (allocate) -> reset_parameters() or load.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "lehr/base/box.h"
#include "lehr/base/layout.h"
#include "lehr/base/torch.h"
#include "lehr/nn/init.h"
#include "lehr/nn/module_holder.h"

namespace lehr::nn {

/// A parameter of a module, and the slots that hold it.
class Parameter {
 public:
  Parameter(std::string name, at::Tensor* slot, std::vector<int64_t> shape, Init init);

  /// The name within its module, such as "weight".
  const std::string& name() const { return name_; }
  /// The global shape, even if this rank holds only a shard.
  const std::vector<int64_t>& shape() const { return shape_; }
  int64_t numel() const;
  const Init& init() const { return init_; }
  void set_init(const Init& init) { init_ = init; }

  /// The region of the whole parameter that this rank holds; all of it unless a layout shards it.
  const Box& box() const { return box_; }
  /// The layout on the mesh; empty for one device.
  const Layout& layout() const { return layout_; }
  /// Sets the placement on an axis of `count` ranks, for the rank with this index: shard(d) keeps that chunk of
  /// dimension d of the current box (as torch.chunk cuts it; it may be empty), replicate keeps the box. Throws a usage
  /// error if the parameter is not on meta any more, or already has a placement on that axis.
  void lay_out(const std::string& axis, Placement placement, int64_t index, int64_t count);

  /// The tensor that the optimizer updates and checkpoints store: the local shard; on meta before `materialize`.
  const at::Tensor& value() const { return value_; }
  /// Replaces the parameter, for autograd and forward alike.
  void set_value(at::Tensor value);

  /// The tensor that forward reads: the value, or the tensor passed to `show`.
  const at::Tensor& shown() const { return *slots_.front(); }
  /// Makes forward read `tensor` instead of the value, until `show_value()`.
  void show(const at::Tensor& tensor);
  void show_value() { show(value_); }

  /// Adds another member that reads this parameter: tied weights. It must be removed before the member is destroyed.
  void add_slot(at::Tensor* slot);
  void remove_slot(at::Tensor* slot);

  /// True for a copy of a parameter that another pipeline stage holds: a tied table. The original is trained, saved and
  /// counted; the copy receives its values and sends its gradient to it. Not listed by named_parameters.
  bool is_copy() const { return copy_; }
  void make_copy() { copy_ = true; }

  bool trainable() const { return trainable_; }
  /// A frozen parameter gets no gradient. State stays frozen.
  void set_trainable(bool trainable);

  /// True if declared by Module::declare_state.
  bool is_state() const { return state_dtype_.has_value(); }
  /// Makes it state of the given dtype.
  void make_state(at::ScalarType dtype);
  /// The dtype to allocate in a model of dtype `model_dtype`.
  at::ScalarType dtype_in(at::ScalarType model_dtype) const { return state_dtype_.value_or(model_dtype); }

 private:
  std::string name_;
  std::vector<at::Tensor*> slots_;
  std::vector<int64_t> shape_;
  Box box_;
  Layout layout_;
  Init init_;
  at::Tensor value_;
  bool trainable_ = true;
  bool copy_ = false;
  std::optional<at::ScalarType> state_dtype_;
};

/// A parameter is shared by its module, optimizers and checkpoints.
using ParameterPtr = std::shared_ptr<Parameter>;

/// A module whose parameters can be initialized after construction.
class ModuleLateInit {
 public:
  virtual ~ModuleLateInit() = default;
  /// Initializes all parameters of the module and its children, which use their own reset_parameters. They must be
  /// materialized. A parameter's values depend on the seed, and on the prefix and its name as seen from this
  /// module.
  virtual void reset_parameters(const InitContext& context) = 0;
  void reset_parameters() { reset_parameters(InitContext{}); }
};

/// Base class of all of Lehr's modules. Constructors declare; they do not allocate, communicate or read globals.
class Module : public torch::nn::Module, public ModuleLateInit {
 public:
  using ModuleLateInit::reset_parameters;
  void reset_parameters(const InitContext& context) override;

  /// The parameters that this module itself declared, in order.
  const std::vector<ParameterPtr>& own_parameters() const { return own_parameters_; }
  /// Returns a parameter that this module itself declared. Otherwise throws a usage error that lists the names.
  const ParameterPtr& own_parameter(const std::string& name) const;

  /// Adds a hook around all calls of this module through its holder, outside the existing hooks.
  void add_call_hook(std::shared_ptr<CallHook> hook) { call_hooks_.push_back(std::move(hook)); }
  const std::vector<std::shared_ptr<CallHook>>& call_hooks() const { return call_hooks_; }
  /// Runs `forward` inside all hooks.
  at::Tensor call_hooked(const at::Tensor& input, const CallHook::Forward& forward) const;
  /// True if this module's names for its children are part of the full names below them. False for a module that only
  /// groups parts of one model.
  virtual bool names_children() const { return true; }

  /// Throws a usage error if there are hooks, because calls of this module cannot be hooked.
  void require_no_hooks() const;

  /// Removes the child `name`, and empties the member that holds it. Throws a usage error unless declare_module
  /// declared it.
  void drop_module(const std::string& name);

 protected:
  /// Registers `module` as the child `name`, held by `member`, by which forward calls it. drop_module removes it.
  template <class Holder>
  void declare_module(const std::string& name, Holder& member, std::type_identity_t<Holder> module) {
    member = register_module(name, std::move(module));
    empty_member_[name] = [&member] { member = nullptr; };
  }
  /// Declares `slot` as the parameter `name` with this global shape, on meta.
  ParameterPtr declare_parameter(const std::string& name, at::Tensor& slot, std::vector<int64_t> shape, Init init);
  /// Declares `slot` as state: it is stored in checkpoints, but not trained by an optimizer and not included in
  /// parameter counts, and it keeps its dtype in any precision. An example is a router's selection bias.
  ParameterPtr declare_state(
      const std::string& name,
      at::Tensor& slot,
      std::vector<int64_t> shape,
      Init init,
      at::ScalarType dtype = at::kFloat);
  /// Removes a declaration, before the slot is bound to another module's parameter.
  void drop_parameter(const std::string& name);

 private:
  std::vector<ParameterPtr> own_parameters_;
  std::vector<std::shared_ptr<CallHook>> call_hooks_;
  std::map<std::string, std::function<void()>> empty_member_;  // by the name of the child that the member holds
};

/// A parameter with its full name, such as "model.layers.0.mlp.up_proj.weight".
struct NamedParameter {
  std::string name;
  ParameterPtr parameter;
};

/// Returns all parameters under `root`, in the order of declaration, each once (tied ones under their first name),
/// without copies. Throws a usage error for a torch::nn module with parameters, which Lehr would not materialize, save
/// or train.
std::vector<NamedParameter> named_parameters(const torch::nn::Module& root, const std::string& prefix = "");
/// Returns the copies under `root` (Parameter::is_copy).
std::vector<NamedParameter> named_copies(const torch::nn::Module& root);

/// Number of elements of all parameters under `root`, without state.
int64_t count_parameters(const torch::nn::Module& root);

/// Allocates every parameter under `root` that is still on meta; contents are undefined until `reset_parameters` or a
/// load.
void materialize(torch::nn::Module& root, at::Device device, at::ScalarType dtype);

/// A list of child modules of one type, keyed by a global index: pipeline stage 2 holds "layers.6", "layers.7".
template <class Holder>
class LayerMapImpl : public torch::nn::Module {
 public:
  void insert(int64_t index, Holder layer) {
    items_.emplace_back(index, register_module(std::to_string(index), std::move(layer)));
  }
  auto begin() { return items_.begin(); }
  auto end() { return items_.end(); }
  size_t size() const { return items_.size(); }
  /// Returns the layer with this global index. Throws std::out_of_range if this stage does not hold it.
  Holder& at(int64_t index) {
    for (auto& [key, layer] : items_) {
      if (key == index) {
        return layer;
      }
    }
    throw std::out_of_range("layer " + std::to_string(index) + " is not in this stage");
  }

 private:
  std::vector<std::pair<int64_t, Holder>> items_;
};

}  // namespace lehr::nn
