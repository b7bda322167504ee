# SPDX-License-Identifier: Apache-2.0
pkg_check_modules(SODIUM REQUIRED IMPORTED_TARGET libsodium)
pkg_check_modules(JANSSON REQUIRED IMPORTED_TARGET jansson)
# Searched at each run: the cached result has other flags, and a second run of CMake would then
# rebuild everything.
unset(__pkg_config_checked_ZMQ CACHE)
pkg_check_modules(ZMQ REQUIRED IMPORTED_TARGET libzmq>=4.3)
target_link_libraries(neb_security PUBLIC
  PkgConfig::SODIUM
  PkgConfig::JANSSON
  PkgConfig::ZMQ
  OpenSSL::SSL)
