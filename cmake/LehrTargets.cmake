# lehr_library(folder USES folder... [HEADERS header...]) and lehr_test(folder): every folder of lehr/ is one static
# library and one test binary. A library may include only the folders that it USES; test/structure/structure_test.cpp
# checks it. LibTorch's headers are precompiled for all, and HEADERS also for this folder and those that use it.
# lehr_program(name SOURCES file... USES folder...) is a program for users: it is written to the top of the build
# folder.

add_library(lehr_warnings INTERFACE)
target_compile_options(lehr_warnings INTERFACE
  -Wall -Wextra -Wpedantic -Wshadow -Wno-unknown-pragmas
  # gcc also warns about fields that designated initializers leave at their defaults, which is intended.
  $<$<CXX_COMPILER_ID:GNU>:-Wno-attributes> $<$<CXX_COMPILER_ID:GNU>:-Wno-missing-field-initializers>
  # g++ 12 sees overlapping copies (GCC bug 105651, mended in 13), wrong offsets and, with -O3, wrong lengths in joined
  # std::strings where there are none.
  $<$<AND:$<CXX_COMPILER_ID:GNU>,$<VERSION_LESS:$<CXX_COMPILER_VERSION>,13>>:-Wno-restrict$<SEMICOLON>-Wno-array-bounds$<SEMICOLON>-Wno-stringop-overflow>)
if(LEHR_WERROR)
  target_compile_options(lehr_warnings INTERFACE -Werror)
endif()

# lehr_unity(target folder): compiles the sources of a target in groups, each as one file, since most of the time of a
# file goes to the headers that it shares with its neighbours. Sources of a subfolder, such as a model family, form a
# group of their own; those with compile options of their own stay single.
function(lehr_unity target folder)
  if(NOT LEHR_UNITY)
    return()
  endif()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
  get_target_property(sources ${target} SOURCES)
  set(count 0)
  foreach(source IN LISTS sources)
    file(RELATIVE_PATH path "${folder}" "${source}")
    get_filename_component(group "${path}" DIRECTORY)
    if(NOT group)
      math(EXPR group "${count} / 8")
      math(EXPR count "${count} + 1")
    endif()
    string(MAKE_C_IDENTIFIER "${group}" group)
    set_source_files_properties("${source}" TARGET_DIRECTORY ${target} PROPERTIES UNITY_GROUP "${group}")
  endforeach()
endfunction()

function(lehr_library name)
  cmake_parse_arguments(ARG "" "" "USES;HEADERS" ${ARGN})
  add_library(lehr_${name} STATIC)
  add_library(lehr::${name} ALIAS lehr_${name})
  set_target_properties(lehr_${name} PROPERTIES EXPORT_NAME ${name} LEHR_USES "${ARG_USES}")
  target_include_directories(lehr_${name} PUBLIC
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}> $<INSTALL_INTERFACE:include>)
  target_link_libraries(lehr_${name} PRIVATE $<BUILD_INTERFACE:lehr_warnings>)
  set(headers_of lehr_base)
  if(name STREQUAL "base")
    target_link_libraries(lehr_base PUBLIC lehr::torch)
  else()
    target_link_libraries(lehr_${name} PUBLIC lehr_base)
    foreach(used IN LISTS ARG_USES)
      get_target_property(theirs lehr_${used} LEHR_HEADERS_OF)
      if(NOT theirs STREQUAL "lehr_base")
        set(headers_of ${theirs})
      endif()
    endforeach()
  endif()
  if(name STREQUAL "base" OR ARG_HEADERS)
    set(headers_of lehr_${name})
    set(headers lehr/base/torch.h ${ARG_HEADERS})
    list(TRANSFORM headers PREPEND "${PROJECT_SOURCE_DIR}/")
    target_precompile_headers(lehr_${name} PRIVATE ${headers})
  else()
    target_precompile_headers(lehr_${name} REUSE_FROM ${headers_of})
  endif()
  set_target_properties(lehr_${name} PROPERTIES LEHR_HEADERS_OF ${headers_of})
  foreach(used IN LISTS ARG_USES)
    target_link_libraries(lehr_${name} PUBLIC lehr_${used})
  endforeach()
  # Not build/lehr/: that name is the program.
  add_subdirectory("${PROJECT_SOURCE_DIR}/lehr/${name}" "${PROJECT_BINARY_DIR}/folder/${name}")
  lehr_unity(lehr_${name} "${PROJECT_SOURCE_DIR}/lehr/${name}")
  target_compile_features(lehr_${name} PUBLIC cxx_std_20)
  set_property(GLOBAL APPEND PROPERTY LEHR_LIBRARIES lehr_${name})
endfunction()

# lehr_as_libtorch(target file...): compiles these files with NDEBUG, as LibTorch is; otherwise at::RecordFunction has
# another layout. The precompiled header fits only if it was compiled so, too.
function(lehr_as_libtorch target)
  string(TOUPPER "${CMAKE_BUILD_TYPE}" type)
  list(TRANSFORM ARGN PREPEND "${CMAKE_CURRENT_SOURCE_DIR}/")
  set_source_files_properties(${ARGN} TARGET_DIRECTORY ${target} PROPERTIES COMPILE_DEFINITIONS NDEBUG)
  if(NOT "${CMAKE_CXX_FLAGS} ${CMAKE_CXX_FLAGS_${type}}" MATCHES "-DNDEBUG")
    set_source_files_properties(${ARGN} TARGET_DIRECTORY ${target} PROPERTIES SKIP_PRECOMPILE_HEADERS ON)
  endif()
endfunction()

# lehr_executable(name SOURCES file... USES folder...): the common part of programs, tests and benchmarks. HEADERS_OF
# names the target whose precompiled headers they use; default: lehr_base.
function(lehr_executable name)
  cmake_parse_arguments(ARG "" "HEADERS_OF" "SOURCES;USES" ${ARGN})
  if(NOT ARG_HEADERS_OF)
    set(ARG_HEADERS_OF lehr_base)
  endif()
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE lehr_warnings)
  foreach(used IN LISTS ARG_USES)
    target_link_libraries(${name} PRIVATE lehr_${used})
  endforeach()
  target_precompile_headers(${name} REUSE_FROM ${ARG_HEADERS_OF})
  # CMake passes -fPIE for programs, which clang refuses together with a header precompiled with -fPIC.
  target_compile_options(${name} PRIVATE -fPIC)
endfunction()

function(lehr_program name)
  lehr_executable(${name} ${ARGN})
  # An installed program finds LibTorch where the build found it. CMAKE_INSTALL_RPATH_USE_LINK_PATH would leave out
  # folders of the project, and .venv is one.
  set_target_properties(${name} PROPERTIES
    RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}" INSTALL_RPATH "${LEHR_TORCH_DIR}/lib")
  install(TARGETS ${name} RUNTIME DESTINATION bin)
endfunction()

# lehr_test_support(name [OPTIMIZED] SOURCES file... [HEADERS header...] [USES folder...]): code that tests share, compiled
# once. Its headers, LibTorch's and GoogleMock's are the precompiled header of the tests that name it as their SUPPORT; it
# fits only if they are optimized alike.
function(lehr_test_support name)
  cmake_parse_arguments(ARG "OPTIMIZED" "" "SOURCES;HEADERS;USES" ${ARGN})
  add_library(${name} OBJECT ${ARG_SOURCES})
  target_link_libraries(${name} PUBLIC GTest::gmock PRIVATE lehr_base lehr_warnings)
  foreach(used IN LISTS ARG_USES)
    target_link_libraries(${name} PRIVATE lehr_${used})
  endforeach()
  list(TRANSFORM ARG_HEADERS PREPEND "${PROJECT_SOURCE_DIR}/")
  target_precompile_headers(${name} PRIVATE
    "${PROJECT_SOURCE_DIR}/lehr/base/torch.h" <gmock/gmock.h> ${ARG_HEADERS})
  target_compile_options(${name} PRIVATE -fPIC)
  if(NOT ARG_OPTIMIZED)
    target_compile_options(${name} PRIVATE $<$<CONFIG:Release>:-O0>)
  endif()
endfunction()

# One binary per folder: loading LibTorch for every case would cost minutes. One ctest entry per binary, or SHARDS
# entries with a share of its cases each. Each entry writes results/<entry>.xml, which script/test_report.py reads.
# In Release, tests are not optimized, which halves the time to compile them: they run in the libraries. OPTIMIZED
# excepts those that compute much themselves.
function(lehr_test name)
  cmake_parse_arguments(ARG "OPTIMIZED" "SHARDS;THREADS;SUPPORT" "SOURCES;USES" ${ARGN})
  set(headers lehr_test_main)
  if(ARG_SUPPORT)
    set(headers ${ARG_SUPPORT})
  endif()
  lehr_executable(${name}_test SOURCES ${ARG_SOURCES} USES ${ARG_USES} HEADERS_OF ${headers})
  target_link_libraries(${name}_test PRIVATE lehr_test_main ${ARG_SUPPORT})
  if(NOT ARG_OPTIMIZED)
    target_compile_options(${name}_test PRIVATE $<$<CONFIG:Release>:-O0>)
  endif()
  target_compile_definitions(${name}_test PRIVATE LEHR_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
  if(NOT ARG_SHARDS)
    set(ARG_SHARDS 1)
  endif()
  foreach(shard RANGE 1 ${ARG_SHARDS})
    set(entry ${name})
    # Threads wait without spinning, since tests run in parallel.
    set(environment "OMP_WAIT_POLICY=PASSIVE")
    if(ARG_THREADS)
      list(APPEND environment "OMP_NUM_THREADS=${ARG_THREADS}")
    endif()
    if(ARG_SHARDS GREATER 1)
      math(EXPR index "${shard} - 1")
      set(entry ${name}_${shard})
      list(APPEND environment "GTEST_TOTAL_SHARDS=${ARG_SHARDS}" "GTEST_SHARD_INDEX=${index}")
    endif()
    add_test(NAME ${entry} COMMAND ${name}_test "--gtest_output=xml:${PROJECT_BINARY_DIR}/results/${entry}.xml"
      WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}")
    set_tests_properties(${entry} PROPERTIES TIMEOUT ${LEHR_TEST_TIMEOUT} ENVIRONMENT "${environment}")
    set_property(GLOBAL APPEND PROPERTY LEHR_GTEST_ENTRIES ${entry})
  endforeach()
endfunction()

# One binary per benchmark, built with LEHR_BENCH; the target lehr_benchmarks builds them all.
function(lehr_benchmark name)
  lehr_executable(${name}_bench ${ARGN})
  target_link_libraries(${name}_bench PRIVATE benchmark::benchmark_main)
  if(NOT TARGET lehr_benchmarks)
    add_custom_target(lehr_benchmarks)
  endif()
  add_dependencies(lehr_benchmarks ${name}_bench)
endfunction()
