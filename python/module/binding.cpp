// Registers the classes of the module as torch.classes.lehr.
#include <torch/custom_class.h>

#include "lehr/base/error.h"
#include "lehr/ops/cuda.h"
#include "python/module/model.h"
#include "python/module/trainer.h"

namespace lehr::python {

namespace {
using Strings = std::vector<std::string>;

c10::intrusive_ptr<Trainer> make_trainer(
    const std::string& file,
    const Strings& keys,
    const Strings& values,
    bool quiet,
    const c10::intrusive_ptr<Exchange>& exchange,
    int64_t loss,
    int64_t data,
    int64_t check) {
  invariant(keys.size() == values.size(), "Trainer: {} keys, {} values", keys.size(), values.size());
  Trainer::Options options{
      .file = file,
      .overrides = {},
      .quiet = quiet,
      .exchange = exchange,
      .loss = Callback(loss),
      .data = Callback(data),
      .check = Callback(check)};
  for (size_t i = 0; i < keys.size(); ++i) {
    options.overrides.emplace_back(keys[i], values[i]);
  }
  return c10::make_intrusive<Trainer>(std::move(options));
}

// gemm.cpp creates the library of this name.
TORCH_LIBRARY_FRAGMENT(lehr, library) {
  library.class_<Exchange>("Exchange").def(torch::init<>()).def("put", &Exchange::put).def("take", &Exchange::take);
  library.class_<Tokenizer>("Tokenizer")
      .def(torch::init<std::string>())
      .def("encode", &Tokenizer::encode)
      .def("special_tokens", &Tokenizer::special_tokens)
      .def("decode", &Tokenizer::decode)
      .def("decode_after", &Tokenizer::decode_after)
      .def("vocab_size", &Tokenizer::vocab_size);
  library.class_<Model>("Model")
      .def(torch::init([](const std::string& folder, const std::string& device, at::ScalarType dtype) {
        return Model::load(folder, device, dtype);
      }))
      .def("forward", &Model::forward)
      .def("logits", &Model::logits)
      .def("generate", &Model::generate)
      .def("named_parameters", &Model::named_parameters)
      .def("save", &Model::save)
      .def("train", &Model::train)
      .def("is_training", &Model::is_training)
      .def("config", &Model::config);
  library.class_<Trainer>("Trainer")
      .def(torch::init(make_trainer))
      .def("begin", &Trainer::begin)
      .def("step", &Trainer::step)
      .def("metrics", &Trainer::metrics)
      .def("on", &Trainer::on)
      .def("save", &Trainer::save)
      .def("finish", &Trainer::finish)
      .def("close", &Trainer::close)
      .def("refresh", &Trainer::refresh)
      .def("model", [](const c10::intrusive_ptr<Trainer>& self) { return Trainer::model(self); })
      .def("tokenizer", [](const c10::intrusive_ptr<Trainer>& self) { return Trainer::tokenizer(self); })
      .def("config", &Trainer::config)
      .def("completed_steps", &Trainer::completed_steps);
  library.def("inspect", inspect);
  library.def("verify", verify);
  library.def("cuda_problem", ops::cuda::open_kernels);
}
}  // namespace

}  // namespace lehr::python
