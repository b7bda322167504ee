# SPDX-License-Identifier: Apache-2.0
pkg_check_modules(ZSTD REQUIRED IMPORTED_TARGET libzstd)
target_link_libraries(neb_compress PUBLIC PkgConfig::ZSTD)
