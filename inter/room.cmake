# SPDX-License-Identifier: Apache-2.0
pkg_check_modules(SQLITE REQUIRED IMPORTED_TARGET sqlite3)
target_link_libraries(neb_inter PUBLIC PkgConfig::ZMQ PkgConfig::SQLITE)
