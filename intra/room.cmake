# SPDX-License-Identifier: Apache-2.0
pkg_check_modules(SENTENCEPIECE REQUIRED IMPORTED_TARGET sentencepiece)
pkg_check_modules(PCRE2 REQUIRED IMPORTED_TARGET libpcre2-8>=10.40)
pkg_check_modules(UTF8PROC REQUIRED IMPORTED_TARGET libutf8proc)
target_link_libraries(neb_intra PUBLIC
  PkgConfig::SENTENCEPIECE
  PkgConfig::JANSSON
  PkgConfig::PCRE2
  PkgConfig::UTF8PROC
  ${CMAKE_DL_LIBS})
