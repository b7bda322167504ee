# SPDX-License-Identifier: Apache-2.0
find_package(OpenSSL 3 REQUIRED)
target_link_libraries(neb_base PUBLIC OpenSSL::Crypto)

# What `nebula --version` prints (build_id.c). Later rows of CMakeLists.txt define these targets.
set_property(SOURCE agent/base/build_id.c APPEND PROPERTY COMPILE_DEFINITIONS
  NEBULA_BUILD_TYPE="${CMAKE_BUILD_TYPE}"
  NEBULA_SANITIZERS="${NEBULA_SANITIZE}"
  NEBULA_HAS_MPI=$<TARGET_EXISTS:nebula_mpi>
  NEBULA_HAS_NCCL=$<TARGET_EXISTS:nebula_nccl>
  NEBULA_HAS_CUDA=$<TARGET_EXISTS:nebula_cuda>)

# The name of a build contains the commit. CMake runs again after a new commit.
find_program(NEBULA_GIT git)
if(NEBULA_GIT)
  execute_process(COMMAND ${NEBULA_GIT} rev-parse --short=12 HEAD
    WORKING_DIRECTORY ${CMAKE_SOURCE_DIR}
    OUTPUT_VARIABLE nebula_commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  execute_process(COMMAND ${NEBULA_GIT} rev-parse --git-path logs/HEAD
    WORKING_DIRECTORY ${CMAKE_SOURCE_DIR}
    OUTPUT_VARIABLE nebula_head OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  get_filename_component(nebula_head "${nebula_head}" ABSOLUTE BASE_DIR ${CMAKE_SOURCE_DIR})
  if(nebula_commit)
    set_property(SOURCE agent/base/build_id.c APPEND PROPERTY COMPILE_DEFINITIONS
      NEBULA_COMMIT="${nebula_commit}")
  endif()
  if(nebula_commit AND EXISTS "${nebula_head}")
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${nebula_head}")
  endif()
endif()

# count.c counts the allocations of every program.
target_link_options(neb_base INTERFACE -Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc
  -Wl,--wrap=aligned_alloc,--wrap=free)
