# SPDX-License-Identifier: Apache-2.0
# The macros for the rows of the top CMakeLists.txt. A row may name only rows above it. If a folder
# has a file room.cmake, that file adds the third-party libraries that the folder needs, and the
# programs and objects that are built from it.

include(GNUInstallDirs)

# nebula_layer(FOLDER [layers that it uses]): the static library neb_NAME. A name such as
# kernels/exact allows one file of a layer, exact.[ch]; it links nothing.
macro(nebula_layer folder)
  get_filename_component(nebula_layer ${folder} NAME)
  set(nebula_layer neb_${nebula_layer})
  add_library(${nebula_layer} STATIC)
  target_link_libraries(${nebula_layer} PUBLIC nebula_flags)
  foreach(nebula_used ${ARGN})
    get_filename_component(nebula_used ${nebula_used} NAME)
    if(TARGET neb_${nebula_used})
      target_link_libraries(${nebula_layer} PUBLIC neb_${nebula_used})
    endif()
  endforeach()
  nebula_room(${folder})
endmacro()

# nebula_room(FOLDER [rooms of its layer that it uses]): adds its sources to the layer above it,
# except main.c of a program and the objects of intra/ranks/room.cmake.
macro(nebula_room folder)
  file(GLOB nebula_sources CONFIGURE_DEPENDS ${folder}/*.c ${folder}/*.cc)
  list(FILTER nebula_sources EXCLUDE REGEX "/(main|comm_mpi|comm_nccl)\\.c$")
  target_sources(${nebula_layer} PRIVATE ${nebula_sources})
  include(${folder}/room.cmake OPTIONAL)
endmacro()

# nebula_object(TARGET): an object that the program loads at run time. When installed, it still
# finds the libraries that it was linked with, also outside the paths of ld.so: CUDA, NCCL, MPI.
function(nebula_object target)
  set_target_properties(${target} PROPERTIES INSTALL_RPATH_USE_LINK_PATH ON)
  if(SKBUILD) # in a wheel: the folders of the packages nvidia-*, which PyTorch also brings
    set(nvidia "$ORIGIN/../../../nvidia")
    set_target_properties(${target} PROPERTIES INSTALL_RPATH
      "${nvidia}/cu${CUDAToolkit_VERSION_MAJOR}/lib;${nvidia}/nccl/lib")
  endif()
  install(TARGETS ${target} LIBRARY DESTINATION lib/nebula)
endfunction()

# nebula_left_out(WHAT): reports what this machine cannot build. configs/quickstart and tests/run
# print it.
function(nebula_left_out what)
  message(STATUS "Left out: ${what}")
endfunction()
