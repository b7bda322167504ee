# SPDX-License-Identifier: Apache-2.0
# Build types, warnings, sanitizers: nebula_flags has the flags of all targets.

set(CMAKE_C_STANDARD 11)
set(CMAKE_C_STANDARD_REQUIRED ON)
set(CMAKE_C_EXTENSIONS ON)
set(CMAKE_CXX_STANDARD 17)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_ENABLE_EXPORTS ON) # loaded objects call neb_base in the program

if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()
# No type defines NDEBUG: invariants are asserted in every build.
set(CMAKE_C_FLAGS_RELEASE "-O3 -g")
set(CMAKE_CXX_FLAGS_RELEASE "-O2 -g")
set(CMAKE_C_FLAGS_RELWITHDEBINFO "-O2 -g")
set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O2 -g")

option(BUILD_TESTING "build tests/, which needs cmocka" ON)
option(NEBULA_WERROR "treat warnings as errors" ON)
option(NEBULA_FUZZ "build libFuzzer targets (clang)" OFF)
set(NEBULA_SANITIZE "" CACHE STRING "address,undefined or thread")

find_package(Threads REQUIRED)
find_package(PkgConfig REQUIRED)

# -ffp-contract=off: all builds must compute the same bits.
add_library(nebula_flags INTERFACE)
target_include_directories(nebula_flags INTERFACE ${CMAKE_SOURCE_DIR})
target_compile_definitions(nebula_flags INTERFACE
  _GNU_SOURCE
  NEBULA_VERSION="${PROJECT_VERSION}")
target_compile_options(nebula_flags INTERFACE
  -Wall -Wextra -Wpedantic -ffp-contract=off -fno-math-errno
  $<$<COMPILE_LANGUAGE:C>:-Wconversion;-Wno-sign-conversion;-Wshadow>
  $<$<COMPILE_LANGUAGE:C>:-Wstrict-prototypes;-Wmissing-prototypes>
  $<$<BOOL:${NEBULA_WERROR}>:-Werror>)
target_link_libraries(nebula_flags INTERFACE Threads::Threads m)
if(NEBULA_SANITIZE)
  target_compile_options(nebula_flags INTERFACE
    -fsanitize=${NEBULA_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  target_link_options(nebula_flags INTERFACE -fsanitize=${NEBULA_SANITIZE})
endif()
if(NEBULA_FUZZ)
  target_compile_options(nebula_flags INTERFACE -fsanitize=fuzzer-no-link)
endif()
