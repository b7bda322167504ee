# SPDX-License-Identifier: Apache-2.0
pkg_check_modules(SODIUM REQUIRED IMPORTED_TARGET libsodium)
pkg_check_modules(JANSSON REQUIRED IMPORTED_TARGET jansson)
# Asked each time, because CMake's cached answer has other flags: with it the second run of CMake
# would compile everything again.
unset(__pkg_config_checked_ZMQ CACHE)
pkg_check_modules(ZMQ REQUIRED IMPORTED_TARGET libzmq>=4.3)
target_link_libraries(neb_security PUBLIC
  PkgConfig::SODIUM
  PkgConfig::JANSSON
  PkgConfig::ZMQ
  OpenSSL::SSL)
