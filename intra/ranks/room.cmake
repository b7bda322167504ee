# SPDX-License-Identifier: Apache-2.0
# Objects for communication libraries that some hosts lack. comm_load.c loads them when a job needs
# them. They call the agent/base and comm.c of the program.
find_package(MPI QUIET COMPONENTS C)
if(MPI_C_FOUND)
  add_library(nebula_mpi MODULE intra/ranks/comm_mpi.c)
  target_link_libraries(nebula_mpi PRIVATE nebula_flags MPI::MPI_C)
  nebula_object(nebula_mpi)
else()
  nebula_left_out("ranks over MPI (Debian: libopenmpi-dev); launcher: local needs none")
endif()

find_path(NCCL_INCLUDE nccl.h HINTS $ENV{NCCL_HOME}/include ${CUDAToolkit_INCLUDE_DIRS})
find_library(NCCL_LIBRARY nccl HINTS $ENV{NCCL_HOME}/lib ${CUDAToolkit_LIBRARY_DIR})
if(NCCL_INCLUDE AND NCCL_LIBRARY AND CUDAToolkit_FOUND)
  add_library(nebula_nccl MODULE intra/ranks/comm_nccl.c)
  target_include_directories(nebula_nccl SYSTEM PRIVATE
    ${NCCL_INCLUDE} ${CUDAToolkit_INCLUDE_DIRS})
  target_link_libraries(nebula_nccl PRIVATE nebula_flags ${NCCL_LIBRARY} CUDA::cudart)
  nebula_object(nebula_nccl)
else()
  nebula_left_out("collectives between GPUs (no nccl.h and libnccl; set NCCL_HOME)")
endif()
