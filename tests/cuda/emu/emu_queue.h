// SPDX-License-Identifier: Apache-2.0
// The emulator's queue (emu.cc), and the hook by which a capture (graph.cc) takes ops from it.
#ifndef EMU_QUEUE_H
#define EMU_QUEUE_H
#include <cuda_runtime_api.h>
#include <functional>

namespace emu {
cudaError_t enqueue(cudaStream_t s, std::function<void()> job);
bool captures(cudaStream_t s);
cudaError_t note(std::function<void()> job);
} // namespace emu
#endif
