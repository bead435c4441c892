# lehr_library(folder USES folder...) and lehr_test(folder): every folder of lehr/ is one static library and one test
# binary. What a library USES is what it may include; test/structure_test.cpp holds the tree to it.
# lehr_program(name SOURCES file... USES folder...) is a program for people: it lands on top of the build folder.

add_library(lehr_warnings INTERFACE)
target_compile_options(lehr_warnings INTERFACE
  -Wall -Wextra -Wpedantic -Wshadow -Wno-unknown-pragmas
  # gcc means the fields that designated initializers leave to their defaults, on purpose.
  $<$<CXX_COMPILER_ID:GNU>:-Wno-attributes> $<$<CXX_COMPILER_ID:GNU>:-Wno-missing-field-initializers>)
if(LEHR_WERROR)
  target_compile_options(lehr_warnings INTERFACE -Werror)
endif()

function(lehr_library name)
  cmake_parse_arguments(ARG "" "" "USES" ${ARGN})
  add_library(lehr_${name} STATIC)
  add_library(lehr::${name} ALIAS lehr_${name})
  set_target_properties(lehr_${name} PROPERTIES EXPORT_NAME ${name} LEHR_USES "${ARG_USES}")
  target_include_directories(lehr_${name} PUBLIC
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}> $<INSTALL_INTERFACE:include>)
  target_link_libraries(lehr_${name} PRIVATE $<BUILD_INTERFACE:lehr_warnings>)
  if(name STREQUAL "base")
    target_link_libraries(lehr_base PUBLIC lehr::torch)
    target_precompile_headers(lehr_base PRIVATE "${PROJECT_SOURCE_DIR}/lehr/base/torch.h")
  else()
    target_link_libraries(lehr_${name} PUBLIC lehr_base)
    target_precompile_headers(lehr_${name} REUSE_FROM lehr_base)
  endif()
  foreach(used IN LISTS ARG_USES)
    target_link_libraries(lehr_${name} PUBLIC lehr_${used})
  endforeach()
  # Not build/lehr/: that is the program.
  add_subdirectory("${PROJECT_SOURCE_DIR}/lehr/${name}" "${PROJECT_BINARY_DIR}/folder/${name}")
  target_compile_features(lehr_${name} PUBLIC cxx_std_20)
  set_property(GLOBAL APPEND PROPERTY LEHR_LIBRARIES lehr_${name})
endfunction()

# lehr_executable(name SOURCES file... USES folder...): what programs, tests and benchmarks share.
function(lehr_executable name)
  cmake_parse_arguments(ARG "" "" "SOURCES;USES" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE lehr_warnings)
  foreach(used IN LISTS ARG_USES)
    target_link_libraries(${name} PRIVATE lehr_${used})
  endforeach()
  target_precompile_headers(${name} REUSE_FROM lehr_base)
  # CMake gives programs -fPIE, which clang refuses together with a header precompiled with -fPIC.
  target_compile_options(${name} PRIVATE -fPIC)
endfunction()

function(lehr_program name)
  lehr_executable(${name} ${ARGN})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}")
  install(TARGETS ${name} RUNTIME DESTINATION bin)
endfunction()

# One binary a folder, one ctest entry a binary: loading LibTorch for every case would cost minutes.
function(lehr_test name)
  if(NOT TARGET lehr_test_main)
    add_library(lehr_test_main OBJECT "${PROJECT_SOURCE_DIR}/test/main.cpp")
    target_link_libraries(lehr_test_main PUBLIC GTest::gmock PRIVATE lehr_base lehr_warnings)
    target_precompile_headers(lehr_test_main REUSE_FROM lehr_base)
    target_compile_options(lehr_test_main PRIVATE -fPIC)
  endif()
  lehr_executable(${name}_test ${ARGN})
  target_link_libraries(${name}_test PRIVATE lehr_test_main)
  target_compile_definitions(${name}_test PRIVATE LEHR_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
  add_test(NAME ${name} COMMAND ${name}_test WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}")
  # Threads that wait without spinning: tests run beside each other.
  set_tests_properties(${name} PROPERTIES TIMEOUT 900 ENVIRONMENT "OMP_WAIT_POLICY=PASSIVE")
endfunction()

# One binary a benchmark, built with LEHR_BENCH and all at once by the target lehr_benchmarks.
function(lehr_benchmark name)
  lehr_executable(${name}_bench ${ARGN})
  target_link_libraries(${name}_bench PRIVATE benchmark::benchmark_main)
  if(NOT TARGET lehr_benchmarks)
    add_custom_target(lehr_benchmarks)
  endif()
  add_dependencies(lehr_benchmarks ${name}_bench)
endfunction()
