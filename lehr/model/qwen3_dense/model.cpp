#include "lehr/model/qwen3_dense/model.h"

#include "lehr/model/decoder_impl.h"

namespace lehr::model {

template class DecoderImpl<Qwen3DenseLayer, Qwen3DenseLayerParameters>;

}  // namespace lehr::model
