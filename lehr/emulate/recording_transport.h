// A transport that records the communication of device tensors instead of carrying it out.
#pragma once

#include <memory>

#include "lehr/emulate/recording.h"
#include "lehr/mesh/transport.h"

namespace lehr::emulate {

/// Returns a transport for a rank whose device is emulated by meta tensors. Their collectives and messages are recorded
/// and send nothing. Tensors of the host, by which ranks agree on counts and names, are exchanged through `hosts`.
/// References must outlive the transport and its backends.
std::unique_ptr<mesh::Transport> recording_transport(mesh::Transport& hosts, Recorder& recorder);

}  // namespace lehr::emulate
