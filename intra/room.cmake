# SPDX-License-Identifier: Apache-2.0
pkg_check_modules(SENTENCEPIECE REQUIRED IMPORTED_TARGET sentencepiece)
pkg_check_modules(PCRE2 REQUIRED IMPORTED_TARGET libpcre2-8>=10.40)
pkg_check_modules(UTF8PROC REQUIRED IMPORTED_TARGET libutf8proc)
pkg_check_modules(ZLIB REQUIRED IMPORTED_TARGET zlib)
pkg_check_modules(LZMA REQUIRED IMPORTED_TARGET liblzma)
target_link_libraries(neb_intra PUBLIC
  PkgConfig::SENTENCEPIECE
  PkgConfig::JANSSON
  PkgConfig::PCRE2
  PkgConfig::UTF8PROC
  PkgConfig::ZLIB
  PkgConfig::LZMA
  PkgConfig::ZSTD
  ${CMAKE_DL_LIBS})

# The program contains the converter of Parquet and Arrow files as an array.
add_custom_command(OUTPUT ${CMAKE_BINARY_DIR}/rows.c
  COMMAND ${CMAKE_COMMAND}
          -DIN=${CMAKE_SOURCE_DIR}/intra/read/rows.py
          -DOUT=${CMAKE_BINARY_DIR}/rows.c -DNAME=intra_rows_py
          -P ${CMAKE_SOURCE_DIR}/configs/cmake/embed.cmake
  DEPENDS intra/read/rows.py configs/cmake/embed.cmake)
target_sources(neb_intra PRIVATE ${CMAKE_BINARY_DIR}/rows.c)
