# SPDX-License-Identifier: Apache-2.0
# Builds the tests of codecs a second time, with one more codec in the table (codec_added.c). The
# whole program then has this codec. A new codec needs no other change to pass these tests.
add_library(codec_added OBJECT unit/codec_added.c ${CMAKE_SOURCE_DIR}/compress/table.c)
target_compile_definitions(codec_added PRIVATE CMP_TEST_CODEC=codec_added)
target_link_libraries(codec_added PRIVATE nebula_flags neb_compress)

foreach(name codec_table codec_golden tune bench_codec)
  add_executable(unit_${name}_added unit/test_${name}.c)
  target_link_libraries(unit_${name}_added PRIVATE codec_added neb_testing)
  target_compile_options(unit_${name}_added PRIVATE $<$<CONFIG:Release>:-O1>)
  nebula_program_test(unit_${name}_added unit unit_${name}_added)
endforeach()

if(NOT NEBULA_FUZZ)
  add_executable(fuzz_frame_added fuzz/fuzz_frame.c fuzz/quiet.c fuzz/replay.c)
  target_link_libraries(fuzz_frame_added PRIVATE codec_added neb_testing)
  nebula_add_test(fuzz_regress_frame_added $<TARGET_FILE:fuzz_frame_added>
    ${CMAKE_CURRENT_SOURCE_DIR}/fuzz/corpus/frame 2000)
  set_tests_properties(fuzz_regress_frame_added PROPERTIES
    LABELS fuzz-regress TIMEOUT ${NEBULA_TEST_TIMEOUT})
endif()

if(TARGET neb_cuda_emu) # it has no kernels, so the processor encodes and decodes
  add_executable(cuda_device_codec_added cuda/test_device_codec.c)
  target_link_libraries(cuda_device_codec_added PRIVATE codec_added neb_cuda_emu)
  set_target_properties(cuda_device_codec_added PROPERTIES LINKER_LANGUAGE CXX)
  nebula_program_test(cuda_device_codec_added cuda cuda_device_codec_added)
endif()
