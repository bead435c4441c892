// The module contract: a torch module that is built without memory and filled in later.
//
// LibTorch cannot turn a meta tensor into a real one in place, so a module declares each parameter with its name, its
// global shape and the address of the member that `forward` reads: the slot. Behind the slot may stand a meta tensor,
// the parameter itself, or another form of it that is in use now (a cast, later a gathered shard). The life of a model
// is construct (shapes only) -> lay out -> materialize (allocate) -> reset_parameters() or load.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lehr/base/box.h"
#include "lehr/base/layout.h"
#include "lehr/base/torch.h"
#include "lehr/nn/init.h"
#include "lehr/nn/module_holder.h"

namespace lehr::nn {

/// One parameter of a module, and the places that show it.
class Parameter {
 public:
  Parameter(std::string name, at::Tensor* slot, std::vector<int64_t> shape, Init init);

  /// The name inside its module, as "weight".
  const std::string& name() const { return name_; }
  /// The shape of the whole parameter, whatever part of it this rank holds.
  const std::vector<int64_t>& shape() const { return shape_; }
  int64_t numel() const;
  const Init& init() const { return init_; }
  void set_init(const Init& init) { init_ = init; }

  /// The part of the whole parameter that is this rank's: all of it, unless a layout cut it.
  const Box& box() const { return box_; }
  /// How it lies on the mesh; empty for one device.
  const Layout& layout() const { return layout_; }
  /// Lays it out on an axis of `count` ranks, of which this is number `index`: shard(d) keeps that chunk of dimension d
  /// of the present box (as torch.chunk cuts it; it may be empty), replicate keeps the box. Throws a usage error if the
  /// parameter is not on meta any more, or is laid out on that axis already.
  void lay_out(const std::string& axis, Placement placement, int64_t index, int64_t count);

  /// What the optimizer updates and a checkpoint holds: the box; on meta before `materialize`.
  const at::Tensor& value() const { return value_; }
  /// Puts `value` in the place of the parameter, for autograd and forward alike.
  void set_value(at::Tensor value);

  /// What forward reads now: the value, or what `show` put there.
  const at::Tensor& shown() const { return *slots_.front(); }
  /// Lets forward read `tensor` instead of the value, until `show_value()`.
  void show(const at::Tensor& tensor);
  void show_value() { show(value_); }

  /// A further member that shall read this parameter: tied weights. It must be taken out before the member is gone.
  void add_slot(at::Tensor* slot);
  void remove_slot(at::Tensor* slot);

  /// A copy of a parameter that another stage of a pipeline holds: a tied table. That one is trained, saved and
  /// counted; this one gets its values, and its gradient goes there. Not listed by named_parameters.
  bool is_copy() const { return copy_; }
  void make_copy() { copy_ = true; }

  bool trainable() const { return trainable_; }
  /// A frozen parameter gets no gradient. State stays frozen.
  void set_trainable(bool trainable);

  /// True for what Module::declare_state declared.
  bool is_state() const { return state_dtype_.has_value(); }
  /// Makes it state of the given type.
  void make_state(at::ScalarType dtype);
  /// The type that memory is allocated in for a model of type `model_dtype`.
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

using ParameterPtr = std::shared_ptr<Parameter>;

/// A module whose parameters can be filled after construction.
class ModuleLateInit {
 public:
  virtual ~ModuleLateInit() = default;
  /// Fills all parameters of the module and its children with their initial values; children do it by their own
  /// reset_parameters. They must be materialized.
  /// A parameter's values depend on the seed and its name as seen from this module (after the prefix).
  virtual void reset_parameters(const InitContext& context) = 0;
  void reset_parameters() { reset_parameters(InitContext{}); }
};

/// Base of all of Lehr's modules. Constructors declare; they do not allocate, communicate or read globals.
class Module : public torch::nn::Module, public ModuleLateInit {
 public:
  using ModuleLateInit::reset_parameters;
  void reset_parameters(const InitContext& context) override;

  /// The parameters that this module itself declared, in order.
  const std::vector<ParameterPtr>& own_parameters() const { return own_parameters_; }
  /// A parameter that this module itself declared. Throws a usage error that lists the names otherwise.
  const ParameterPtr& own_parameter(const std::string& name) const;

  /// Puts a hook around all calls of this module by its holder, outside those that are there.
  void add_call_hook(std::shared_ptr<CallHook> hook) { call_hooks_.push_back(std::move(hook)); }
  const std::vector<std::shared_ptr<CallHook>>& call_hooks() const { return call_hooks_; }
  /// `forward` inside all hooks.
  at::Tensor call_hooked(const at::Tensor& input, const CallHook::Forward& forward) const;
  /// Whether names of what is below begin with this module's names for its children. Not so for a module that only puts
  /// parts of one model side by side.
  virtual bool names_children() const { return true; }

  /// Throws a usage error if there are hooks: the call of this module cannot run through them.
  void require_no_hooks() const;

 protected:
  /// Declares `slot` as the parameter `name` of the given global shape; it starts on meta.
  ParameterPtr declare_parameter(const std::string& name, at::Tensor& slot, std::vector<int64_t> shape, Init init);
  /// Declares `slot` as state: a checkpoint holds it, no optimizer trains it, parameter counts leave it out, and it
  /// keeps its type whatever the precision of the model. A router's selection bias is one.
  ParameterPtr declare_state(
      const std::string& name,
      at::Tensor& slot,
      std::vector<int64_t> shape,
      Init init,
      at::ScalarType dtype = at::kFloat);
  /// Takes back a declaration, when the slot is to show another module's parameter.
  void drop_parameter(const std::string& name);

 private:
  std::vector<ParameterPtr> own_parameters_;
  std::vector<std::shared_ptr<CallHook>> call_hooks_;
};

/// A parameter with its full name, as "model.layers.0.mlp.up_proj.weight".
struct NamedParameter {
  std::string name;
  ParameterPtr parameter;
};

/// All parameters under `root`, in the order of declaration, each once (tied ones under their first name), without
/// copies. Throws a usage error for a module of torch::nn with parameters: nothing here would materialize, save or
/// train them.
std::vector<NamedParameter> named_parameters(const torch::nn::Module& root, const std::string& prefix = "");
/// The copies under `root` (Parameter::is_copy).
std::vector<NamedParameter> named_copies(const torch::nn::Module& root);

/// Number of elements of all parameters under `root`, without state.
int64_t count_parameters(const torch::nn::Module& root);

/// Allocates every parameter under `root` that is still on meta; contents are undefined until `reset_parameters` or a
/// load.
void materialize(torch::nn::Module& root, at::Device device, at::ScalarType dtype);

/// A list of child modules of one type, keyed by a global index: stage 2 of a pipeline holds "layers.6", "layers.7".
template <class Holder>
class LayerMapImpl : public torch::nn::Module {
 public:
  void insert(int64_t index, Holder layer) {
    items_.emplace_back(index, register_module(std::to_string(index), std::move(layer)));
  }
  auto begin() { return items_.begin(); }
  auto end() { return items_.end(); }
  size_t size() const { return items_.size(); }
  /// The layer with the given global index. Throws std::out_of_range if this stage does not hold it.
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
