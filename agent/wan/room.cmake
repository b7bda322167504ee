# SPDX-License-Identifier: Apache-2.0
add_executable(wanlink agent/wan/main.c)
target_link_libraries(wanlink PRIVATE neb_wan)
install(TARGETS wanlink DESTINATION ${CMAKE_INSTALL_LIBEXECDIR}/nebula)
