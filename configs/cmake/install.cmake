# SPDX-License-Identifier: Apache-2.0
# Files that are installed but not built (rooms install what they build), the target `product`,
# packages.

# The unit must start the installed program: in /usr/local from here, in /usr from a package.
install(CODE "
  file(READ \"${CMAKE_SOURCE_DIR}/configs/systemd/nebula-agent.service\" unit)
  string(REPLACE /usr/bin/nebula \"\${CMAKE_INSTALL_PREFIX}/bin/nebula\" unit \"\${unit}\")
  file(WRITE \"${CMAKE_BINARY_DIR}/doc/nebula-agent.service\" \"\${unit}\")")
install(FILES ${CMAKE_BINARY_DIR}/doc/nebula-agent.service DESTINATION lib/systemd/system)

# Messages and README.md name configs/NAME; an installed program has it as share/nebula/NAME.
install(DIRECTORY configs/slurm configs/grafana configs/examples
  DESTINATION share/nebula PATTERN __pycache__ EXCLUDE)
file(GLOB jobs CONFIGURE_DEPENDS configs/*.yaml)
list(FILTER jobs EXCLUDE REGEX "/compare[^/]*$") # configs/compare needs the source tree
install(FILES ${jobs} DESTINATION share/nebula)
install(PROGRAMS configs/corpus-manpages configs/corpus-parallel DESTINATION share/nebula)

# README.md, and the documents for users that it links to.
install(FILES README.md DESTINATION ${CMAKE_INSTALL_DOCDIR})
foreach(folder agent configs security)
  install(FILES ${folder}/README.md DESTINATION ${CMAKE_INSTALL_DOCDIR}/${folder})
endforeach()

# A wheel has inside what kernels/onednn.c and kernels/blas.c load, where the program looks for it.
if(SKBUILD)
  set_target_properties(nebula PROPERTIES INSTALL_RPATH "$ORIGIN/../lib")
  find_library(NEBULA_ONEDNN NAMES libdnnl.so.3 libdnnl.so.2)
  find_library(NEBULA_OPENBLAS NAMES libopenblas.so.0 REQUIRED)
  foreach(library ${NEBULA_ONEDNN} ${NEBULA_OPENBLAS})
    if(library)
      get_filename_component(name ${library} NAME)
      file(REAL_PATH ${library} file)
      install(PROGRAMS ${file} DESTINATION lib RENAME ${name})
    endif()
  endforeach()
  if(NOT NEBULA_ONEDNN)
    nebula_left_out("oneDNN in the wheel (Debian: libdnnl2)")
  endif()
endif()

# Builds everything that is installed, without tests.
add_custom_target(product DEPENDS nebula nebula_doc libnebula wanlink)
foreach(object nebula_mpi nebula_nccl nebula_cuda)
  if(TARGET ${object})
    add_dependencies(product ${object})
  endif()
endforeach()

add_custom_target(uninstall COMMAND ${CMAKE_COMMAND}
  -P ${CMAKE_SOURCE_DIR}/configs/cmake/uninstall.cmake)

# cpack -G DEB
set(CPACK_PACKAGE_CONTACT "Nebula maintainers <nebula@localhost>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY
  "train one model on clusters joined by slow, lossy, untrusted links")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_DEPENDS libopenblas0) # kernels/blas.c loads it
set(CPACK_DEBIAN_PACKAGE_RECOMMENDS
  "gnuplot-nox, openmpi-bin, sentencepiece, libdnnl2") # libdnnl2: kernels/README.md
set(CPACK_DEBIAN_PACKAGE_CONTROL_EXTRA ${CMAKE_SOURCE_DIR}/configs/debian/prerm)
include(CPack)
