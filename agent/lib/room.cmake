# SPDX-License-Identifier: Apache-2.0
# libnebula, the library for training loops of users: the exchange of a worker, and what it needs
# of each layer, compiled position-independent. It exports only nebula_*. It loads the kernels
# for tensors on a GPU at run time (kernels/device.c). The linker keeps only code that the exported calls reach.
file(GLOB libnebula_sources CONFIGURE_DEPENDS
  agent/base/*.c
  agent/exchange/*.c
  agent/job/config*.c
  agent/lib/*.c
  compress/*.c
  inter/outer/*.c
  intra/ckpt/checkpoint*.c
  security/seal*.c)
list(APPEND libnebula_sources
  agent/job/groups.c
  agent/job/init_digest.c
  agent/job/private.c
  agent/job/tune.c
  agent/job/update_size.c
  agent/job/wan_spec.c
  agent/proc/credential.c
  agent/proc/harden.c
  agent/proc/ipc.c
  agent/proc/ipc_remote.c
  inter/link/rate_limit.c
  inter/record/robust.c
  inter/record/tune.c
  inter/record/types.c
  inter/service/snapshot_wire.c
  intra/model/attn_mlp.c
  intra/model/mesh.c
  intra/model/model.c
  intra/model/optim.c
  intra/model/rope.c
  intra/ranks/comm.c
  intra/train/shards.c
  intra/train/trainer.c
  intra/train/trainer_ckpt.c
  intra/train/trainer_parts.c
  kernels/blocks.c
  kernels/device.c
  kernels/device_stage.c
  kernels/exact.c
  kernels/host.c
  kernels/pool.c
  kernels/quant.c
  kernels/ref.c
  security/identity.c
  security/locked.c
  security/noise.c
  security/privacy.c
  security/secure_sum.c
  security/vault.c)

add_library(libnebula SHARED ${libnebula_sources})
target_link_libraries(libnebula PRIVATE
  nebula_flags
  PkgConfig::ZMQ
  PkgConfig::ZSTD
  PkgConfig::JANSSON
  PkgConfig::YAML
  PkgConfig::SODIUM
  OpenSSL::Crypto
  ${CMAKE_DL_LIBS})
set(libnebula_map ${CMAKE_SOURCE_DIR}/agent/lib/libnebula.map)
set_target_properties(libnebula PROPERTIES
  PREFIX lib
  OUTPUT_NAME nebula
  VERSION 2.${PROJECT_VERSION} # 2: NEBULA_API
  SOVERSION 2
  C_VISIBILITY_PRESET hidden
  LINK_DEPENDS ${libnebula_map}
  PUBLIC_HEADER agent/lib/libnebula.h)
target_compile_options(libnebula PRIVATE -ffunction-sections -fdata-sections)
target_link_options(libnebula PRIVATE -Wl,--gc-sections -Wl,--version-script=${libnebula_map})
if(NOT NEBULA_SANITIZE AND NOT NEBULA_FUZZ)
  target_link_options(libnebula PRIVATE -Wl,--no-undefined)
else() # an instrumented build keeps all sections, also callers of functions that are not linked
  target_link_options(libnebula INTERFACE -Wl,--allow-shlib-undefined)
endif()
install(TARGETS libnebula LIBRARY DESTINATION lib PUBLIC_HEADER DESTINATION include/nebula)
install(DIRECTORY agent/lib/python/nebula DESTINATION lib/nebula/python
  FILES_MATCHING PATTERN "*.py" PATTERN "py.typed" PATTERN __pycache__ EXCLUDE)
