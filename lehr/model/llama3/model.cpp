#include "lehr/model/llama3/model.h"

#include "lehr/model/decoder_impl.h"

namespace lehr::model {

template class DecoderImpl<Llama3Layer, Llama3LayerParameters>;

}  // namespace lehr::model
