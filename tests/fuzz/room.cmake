# SPDX-License-Identifier: Apache-2.0
# tests/fuzz/fuzz_NAME.c: with -DNEBULA_FUZZ=ON a libFuzzer target. Otherwise the test
# fuzz_regress_NAME, which runs it over its corpus folder corpus/NAME and over seeded mutations of
# the corpus. Fuzzers with an expensive set-up get fewer mutations:
set(mutations_of_ledger 40)     # opens a database
set(mutations_of_service 40)    # opens a database
set(mutations_of_ipc 50)        # starts an agent
set(mutations_of_daemon 50)     # starts an agent
set(mutations_of_hf_folder 100) # writes and reads a folder
set(mutations_of_ranks 300)     # waits for ranks
set(mutations_of_teach 300)     # trains a model
set(mutations_of_notes 600)     # writes and reads a file

file(GLOB fuzzers CONFIGURE_DEPENDS fuzz/fuzz_*.c)
foreach(source ${fuzzers})
  get_filename_component(name ${source} NAME_WE)
  string(REPLACE "fuzz_" "" what ${name})
  add_executable(${name} ${source} fuzz/quiet.c)
  target_link_libraries(${name} PRIVATE neb_testing)
  target_compile_options(${name} PRIVATE $<$<CONFIG:Release>:-O1>)
  if(NEBULA_FUZZ)
    target_link_options(${name} PRIVATE -fsanitize=fuzzer)
    continue()
  endif()
  target_sources(${name} PRIVATE fuzz/replay.c)
  set(mutations 2000)
  if(DEFINED mutations_of_${what})
    set(mutations ${mutations_of_${what}})
  endif()
  nebula_add_test(fuzz_regress_${what} $<TARGET_FILE:${name}>
    ${CMAKE_CURRENT_SOURCE_DIR}/fuzz/corpus/${what} ${mutations})
  set_tests_properties(fuzz_regress_${what} PROPERTIES
    LABELS fuzz-regress TIMEOUT ${NEBULA_TEST_TIMEOUT})
endforeach()
