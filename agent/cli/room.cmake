# SPDX-License-Identifier: Apache-2.0
# The program is main.c over the library of its layer, which tests link too.
add_executable(nebula agent/cli/main.c)
target_link_libraries(nebula PRIVATE neb_agent)
install(TARGETS nebula)

# nebula_from_help(WHAT FILE FOLDER [NAME]): what `nebula completion WHAT` prints, installed into
# FOLDER under NAME (default: FILE).
function(nebula_from_help what file folder)
  set(made ${CMAKE_BINARY_DIR}/doc/${file})
  add_custom_command(OUTPUT ${made}
    COMMAND ${CMAKE_COMMAND} -E make_directory ${CMAKE_BINARY_DIR}/doc
    COMMAND nebula completion ${what} > ${made}
    DEPENDS nebula)
  add_custom_target(nebula_doc_${what} DEPENDS ${made})
  add_dependencies(nebula_doc nebula_doc_${what})
  set(name ${ARGN})
  if(NOT name)
    set(name ${file})
  endif()
  install(FILES ${made} DESTINATION ${folder} RENAME ${name})
endfunction()

add_custom_target(nebula_doc ALL)
nebula_from_help(man nebula.1 ${CMAKE_INSTALL_MANDIR}/man1)
add_custom_command(OUTPUT ${CMAKE_BINARY_DIR}/doc/man/nebula-agent.1
  COMMAND nebula completion manuals ${CMAKE_BINARY_DIR}/doc/man
  DEPENDS nebula)
add_custom_target(nebula_doc_manuals DEPENDS ${CMAKE_BINARY_DIR}/doc/man/nebula-agent.1)
add_dependencies(nebula_doc nebula_doc_manuals)
install(DIRECTORY ${CMAKE_BINARY_DIR}/doc/man/ DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
nebula_from_help(bash nebula.bash share/bash-completion/completions nebula)
nebula_from_help(zsh _nebula share/zsh/site-functions)
nebula_from_help(fish nebula.fish share/fish/vendor_completions.d)
