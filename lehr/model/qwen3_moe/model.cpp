#include "lehr/model/qwen3_moe/model.h"

#include "lehr/model/decoder_impl.h"

namespace lehr::model {

template class DecoderImpl<Qwen3MoELayer, Qwen3MoELayerParameters>;

}  // namespace lehr::model
