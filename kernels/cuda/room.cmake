# SPDX-License-Identifier: Apache-2.0
# nebula_cuda, an object that kernels/device.c loads: nvcc compiles *.cu, the C compiler *.c. It
# contains machine code for Ampere and Hopper, and PTX for later devices. cudart is linked
# statically; an rpath finds cuBLASLt.
if(EXISTS "$ENV{CUDA_HOME}/bin/nvcc" AND NOT DEFINED CUDAToolkit_ROOT
   AND NOT DEFINED ENV{CUDAToolkit_ROOT})
  set(CUDAToolkit_ROOT "$ENV{CUDA_HOME}") # CMake itself reads only CUDA_PATH
endif()
find_package(CUDAToolkit QUIET)
find_program(NEBULA_NVCC nvcc HINTS ${CUDAToolkit_BIN_DIR} $ENV{CUDA_HOME}/bin)

set(NEBULA_CUDA_ARCHITECTURES "80;90" CACHE STRING "compute capabilities to make machine code for")

if(NEBULA_NVCC AND CUDAToolkit_FOUND AND TARGET CUDA::cublasLt)
  set(cuda_machines)
  foreach(cc ${NEBULA_CUDA_ARCHITECTURES})
    list(APPEND cuda_machines -gencode arch=compute_${cc},code=sm_${cc})
  endforeach()
  list(GET NEBULA_CUDA_ARCHITECTURES -1 cc)
  list(APPEND cuda_machines -gencode arch=compute_${cc},code=compute_${cc}) # PTX of the last one
  file(GLOB cuda_kernels CONFIGURE_DEPENDS kernels/cuda/*.cu)
  file(GLOB cuda_headers CONFIGURE_DEPENDS kernels/cuda/*.cuh kernels/cuda/*.h kernels/*.h)
  file(GLOB cuda_host CONFIGURE_DEPENDS kernels/cuda/*.c)
  set(cuda_objects)
  foreach(source ${cuda_kernels})
    get_filename_component(name ${source} NAME_WE)
    set(exact)
    if(name MATCHES "^exact") # must give the bits of the CPU
      set(exact -fmad=false -ftz=false -prec-div=true -prec-sqrt=true)
    endif()
    set(machines ${cuda_machines})
    if(name MATCHES "_wgmma$") # instructions that only Hopper has
      set(machines -gencode arch=compute_90a,code=sm_90a)
    endif()
    set(object ${CMAKE_BINARY_DIR}/cuda/${name}.o)
    add_custom_command(OUTPUT ${object}
      COMMAND ${CMAKE_COMMAND} -E make_directory ${CMAKE_BINARY_DIR}/cuda
      COMMAND ${NEBULA_NVCC} -std=c++17 -O3 -lineinfo -I${CMAKE_SOURCE_DIR}
              -Xcompiler -fPIC,-Wall,-Wno-unused-function -ccbin ${CMAKE_CXX_COMPILER}
              ${machines} ${exact} -c ${source} -o ${object}
      DEPENDS ${source} ${cuda_headers} VERBATIM)
    list(APPEND cuda_objects ${object})
  endforeach()
  add_library(nebula_cuda MODULE ${cuda_host} kernels/cuda/object/host.c ${cuda_objects})
  set_target_properties(nebula_cuda PROPERTIES LINKER_LANGUAGE CXX)
  target_link_libraries(nebula_cuda PRIVATE nebula_flags CUDA::cudart_static CUDA::cublasLt)
  nebula_object(nebula_cuda)
else()
  nebula_left_out("CUDA kernels (no nvcc with cuBLASLt; not in Debian main, set CUDA_HOME): \
training is on CPUs")
endif()
