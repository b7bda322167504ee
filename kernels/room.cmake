# SPDX-License-Identifier: Apache-2.0
pkg_check_modules(OPENBLAS REQUIRED IMPORTED_TARGET openblas) # its header; blas.c loads the library
target_include_directories(neb_kernels SYSTEM PRIVATE ${OPENBLAS_INCLUDE_DIRS})
target_link_libraries(neb_kernels PUBLIC ${CMAKE_DL_LIBS})

# Files named after an instruction set have the kernels for it. The program chooses at run time.
function(kernels_isa suffix)
  file(GLOB sources CONFIGURE_DEPENDS kernels/*_${suffix}.c)
  set_property(SOURCE ${sources} APPEND PROPERTY COMPILE_OPTIONS ${ARGN})
endfunction()
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  set(avx512 -mavx512f -mavx512bw -mavx512vl -mavx512dq -mfma -mf16c)
  kernels_isa(avx2 -mavx2 -mfma -mf16c)
  kernels_isa(avx512 ${avx512})
  kernels_isa(avx512bf16 ${avx512} -mavx512bf16)
  kernels_isa(amx ${avx512} -mavx512bf16 -mamx-tile -mamx-bf16)
endif()

include(kernels/cuda/room.cmake)
