# SPDX-License-Identifier: Apache-2.0
# NCCL, kernels and devices without a GPU: the product's sources over the emulators in cuda/emu. At
# the end, the kernels on a real GPU.

# intra/ranks/comm_nccl.c over an emulated NCCL, built twice: as a library, and as an object that
# the program loads instead of libnebula_nccl.so. It exports little, because the emulated kernels
# have calls of the same names.
set(nccl_emu
  ${CMAKE_SOURCE_DIR}/intra/ranks/comm_nccl.c
  cuda/emu/nccl.c
  cuda/emu/nccl_runtime.c)
add_library(neb_nccl_emu STATIC ${nccl_emu})
target_link_libraries(neb_nccl_emu PUBLIC neb_base)
add_library(nebula_nccl_emulated MODULE ${nccl_emu})
target_link_libraries(nebula_nccl_emulated PRIVATE nebula_flags)
target_link_options(nebula_nccl_emulated PRIVATE
  -Wl,--version-script=${CMAKE_CURRENT_SOURCE_DIR}/cuda/emu/nccl.map)
foreach(target neb_nccl_emu nebula_nccl_emulated)
  target_include_directories(${target} BEFORE PUBLIC cuda/emu)
endforeach()
target_link_libraries(conform_nccl_faults PRIVATE neb_nccl_emu)

# The emulation also compiles against NVIDIA's headers, which checks its argument lists.
if(NCCL_INCLUDE AND CUDAToolkit_FOUND)
  add_library(emu_headers OBJECT cuda/emu/nccl.c cuda/emu/nccl_runtime.c cuda/emu/cublaslt.c)
  target_include_directories(emu_headers SYSTEM PRIVATE
    ${NCCL_INCLUDE} ${CUDAToolkit_INCLUDE_DIRS})
  target_link_libraries(emu_headers PRIVATE nebula_flags)
endif()

# The suite of conform/test_comm_nccl.sh again, on an emulated GPU.
set(emulated_nccl EMULATED_NCCL=$<TARGET_FILE:nebula_nccl_emulated>)
add_test(NAME conform_comm_nccl_emulated
  COMMAND bash ${CMAKE_CURRENT_SOURCE_DIR}/conform/test_comm_nccl.sh)
set_tests_properties(conform_comm_nccl_emulated PROPERTIES
  LABELS conform TIMEOUT ${NEBULA_TEST_TIMEOUT} SKIP_RETURN_CODE 77
  ENVIRONMENT "BUILD=${CMAKE_BINARY_DIR};SOURCE=${CMAKE_SOURCE_DIR};${emulated_nccl}")

set(device_matrix
  cuda/device_matrix.c
  cuda/device_heads.c
  cuda/device_arrays.c
  cuda/device_exact.c
  cuda/device_case.c)

# The kernels as plain C++ over an emulated device. The thread sanitizer cannot follow its fibers.
if(NOT NEBULA_SANITIZE MATCHES "thread")
  file(GLOB cuda_kernels CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/kernels/cuda/*.cu)
  file(GLOB cuda_host CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/kernels/cuda/*.c)
  set_source_files_properties(${cuda_kernels} PROPERTIES LANGUAGE CXX
    COMPILE_OPTIONS "-x;c++;-O3;-Wno-unknown-pragmas;-Wno-pedantic")
  set(emu_options
    $<$<COMPILE_LANGUAGE:C>:-Wno-missing-prototypes>
    $<$<COMPILE_LANGUAGE:CXX>:-Wno-unknown-pragmas>)

  # Compiled once, and used twice: in a library that tests link, and in an object that the program
  # loads instead of libnebula_cuda.so.
  add_library(neb_cuda_emu_objects OBJECT
    ${cuda_kernels}
    ${cuda_host}
    cuda/emu/emu.cc
    cuda/emu/graph.cc
    cuda/emu/runtime.c
    cuda/emu/cublaslt.c)
  set_target_properties(neb_cuda_emu_objects PROPERTIES POSITION_INDEPENDENT_CODE ON)
  target_include_directories(neb_cuda_emu_objects BEFORE PUBLIC cuda/emu)
  target_compile_options(neb_cuda_emu_objects PUBLIC ${emu_options})
  target_link_libraries(neb_cuda_emu_objects PRIVATE nebula_flags)

  add_library(neb_cuda_emu STATIC $<TARGET_OBJECTS:neb_cuda_emu_objects> ${device_matrix})
  target_include_directories(neb_cuda_emu BEFORE PUBLIC cuda/emu)
  target_compile_options(neb_cuda_emu PUBLIC ${emu_options})
  target_link_libraries(neb_cuda_emu PUBLIC neb_inter neb_intra neb_compress PkgConfig::CMOCKA)

  add_library(nebula_cuda_emulated MODULE $<TARGET_OBJECTS:neb_cuda_emu_objects>
    ${CMAKE_SOURCE_DIR}/kernels/cuda/object/host.c)
  set_target_properties(nebula_cuda_emulated PROPERTIES LINKER_LANGUAGE CXX)
  target_link_libraries(nebula_cuda_emulated PRIVATE nebula_flags)

  # Rates of the emulated device, for tests that need any plan.
  file(REMOVE_RECURSE ${CMAKE_BINARY_DIR}/rates-device)
  nebula_script_test(cuda_rates cuda cuda/rates.sh
    EMULATED=$<TARGET_FILE:nebula_cuda_emulated> ${emulated_nccl})
  set_tests_properties(cuda_rates PROPERTIES FIXTURES_SETUP device_rates)

  file(GLOB scripts RELATIVE ${CMAKE_CURRENT_SOURCE_DIR} CONFIGURE_DEPENDS cuda/test_*.sh)
  foreach(script ${scripts})
    get_filename_component(name ${script} NAME_WE)
    string(REPLACE "test_" "cuda_" name ${name})
    nebula_script_test(${name} cuda ${script}
      EMULATED=$<TARGET_FILE:nebula_cuda_emulated> ${emulated_nccl})
  endforeach()
  file(GLOB sources CONFIGURE_DEPENDS cuda/test_*.c cuda/test_*.cc)
  foreach(source ${sources})
    get_filename_component(name ${source} NAME_WE)
    string(REPLACE "test_" "cuda_" name ${name})
    add_executable(${name} ${source})
    target_link_libraries(${name} PRIVATE neb_cuda_emu)
    set_target_properties(${name} PROPERTIES LINKER_LANGUAGE CXX)
    nebula_program_test(${name} cuda ${name})
  endforeach()
  target_link_libraries(cuda_cost_device PRIVATE neb_agent) # the planner measures a device

  # Some tests again: without Hopper's own instructions, and with a queue that runs only when the
  # host waits for it.
  nebula_program_test(cuda_emulated_ampere cuda cuda_emulated EMU_MAJOR=8)
  foreach(name device_train device_sides graph graph_train stage)
    nebula_program_test(cuda_${name}_late cuda cuda_${name} EMU_LATE=1)
  endforeach()
endif()

# The kernels on a real GPU: gpu/run, which exits with 77 if there is none.
file(GLOB sources CONFIGURE_DEPENDS gpu/*.c)
add_executable(gpu_check ${sources} ${device_matrix})
target_link_libraries(gpu_check PRIVATE neb_intra)
nebula_add_test(gpu_judge bash ${CMAKE_CURRENT_SOURCE_DIR}/gpu/test_judge.sh) # needs no GPU
set_tests_properties(gpu_judge PROPERTIES LABELS gpu TIMEOUT 180)
add_test(NAME gpu_run COMMAND bash ${CMAKE_CURRENT_SOURCE_DIR}/gpu/run --quick)
set_tests_properties(gpu_run PROPERTIES LABELS gpu TIMEOUT 1200 SKIP_RETURN_CODE 77
  RUN_SERIAL ON ENVIRONMENT "BUILD=${CMAKE_BINARY_DIR}")
