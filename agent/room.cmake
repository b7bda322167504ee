# SPDX-License-Identifier: Apache-2.0
pkg_check_modules(YAML REQUIRED IMPORTED_TARGET yaml-0.1)
pkg_check_modules(MICROHTTPD REQUIRED IMPORTED_TARGET libmicrohttpd>=0.9.71)
target_link_libraries(neb_agent PUBLIC PkgConfig::YAML PkgConfig::JANSSON PkgConfig::MICROHTTPD)
