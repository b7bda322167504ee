# SPDX-License-Identifier: Apache-2.0
# The program contains the status page as an array.
add_custom_command(OUTPUT ${CMAKE_BINARY_DIR}/page.c
  COMMAND ${CMAKE_COMMAND}
          -DIN=${CMAKE_SOURCE_DIR}/agent/web/page/index.html
          -DOUT=${CMAKE_BINARY_DIR}/page.c -DNAME=agent_page_html
          -P ${CMAKE_SOURCE_DIR}/configs/cmake/embed.cmake
  DEPENDS agent/web/page/index.html configs/cmake/embed.cmake)
target_sources(neb_agent PRIVATE ${CMAKE_BINARY_DIR}/page.c)
