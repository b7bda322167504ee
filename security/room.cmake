pkg_check_modules(SODIUM REQUIRED IMPORTED_TARGET libsodium)
pkg_check_modules(JANSSON REQUIRED IMPORTED_TARGET jansson)
pkg_check_modules(ZMQ REQUIRED IMPORTED_TARGET libzmq>=4.3)
target_link_libraries(neb_security PUBLIC
  PkgConfig::SODIUM
  PkgConfig::JANSSON
  PkgConfig::ZMQ
  OpenSSL::SSL)
