// The results of lehr.inspect and lehr.verify, as JSON.
#include "lehr/app/models.h"
#include "lehr/config/json.h"
#include "lehr/pretrained/model_folder.h"
#include "lehr/state/dtype.h"
#include "lehr/state/weights.h"
#include "lehr/train/device.h"
#include "lehr/verify/verify.h"
#include "python/module/model.h"

namespace lehr::python {

namespace {
template <class T>
Node list_of(const std::vector<T>& values) {
  Node list = Node::make_list();
  for (const T& value : values) {
    list.push_back(Node(value));
  }
  return list;
}

Node tensors_in(const state::WeightReader& reader) {
  Node tensors = Node::make_list();
  for (const std::string& name : reader.names()) {
    const auto& info = reader.info(name);
    Node tensor = Node::make_table();
    tensor.set("name", Node(name));
    tensor.set("dtype", Node(std::string(state::dtype_name(info.dtype))));
    tensor.set("shape", list_of(info.shape));
    tensors.push_back(std::move(tensor));
  }
  return tensors;
}
}  // namespace

std::string inspect(const std::string& folder) {
  const auto specs = app::models();
  const auto opened = pretrained::ModelFolder::open(folder, specs.families());
  const auto counts = opened.args->get_nparams_and_flops(4096);
  Node report = Node::make_table();
  report.set("model_type", Node(opened.args->model_type()));
  report.set("config", opened.args->to_hf_config(""));
  report.set("num_parameters", Node(counts.num_parameters));
  report.set("flops_per_token", Node(counts.flops_per_token));
  report.set("kv_cache_per_token", list_of(counts.kv_cache_per_token));
  report.set("tensors", tensors_in(state::WeightReader(opened.base)));
  return to_json(report);
}

std::string verify(
    const std::string& folder, const std::string& reference, const std::string& device, at::ScalarType dtype) {
  const auto specs = app::models();
  verify::VerifyOptions options{.model = folder, .dtype = dtype, .device = train::choose_device(device)};
  if (!reference.empty()) {
    options.reference = reference;
  }
  const verify::VerifyReport result = verify::verify_folder(options, specs.families());
  Node rows = Node::make_list();
  for (const verify::VerifyRow& row : result.rows) {
    Node one = Node::make_table();
    one.set("name", Node(row.name));
    one.set("max_abs", Node(row.max_abs));
    one.set("max_rel", Node(row.max_rel));
    one.set("tolerance", Node(row.tolerance));
    one.set("ok", Node(row.ok));
    rows.push_back(std::move(one));
  }
  Node report = Node::make_table();
  report.set("ok", Node(result.ok()));
  report.set("rows", std::move(rows));
  report.set("left_out", list_of(result.left_out));
  return to_json(report);
}

}  // namespace lehr::python
