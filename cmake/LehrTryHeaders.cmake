# lehr_try_headers(problem name SOURCE file [FLAGS flag...] [INCLUDES folder...]) compiles the #include <...> lines of a
# source, with LibTorch and the compile options of the source. Sets `problem` to "" or to the compiler's first error.
# The existence of a header is not enough: it may include one that does not exist.
#
# A success is cached as LEHR_<name>_WORKS; after a failure the next configuration tries again.

# Sets `line` to the first error in a compiler's output, or else to the output's first line.
function(lehr_first_error line output)
  string(STRIP "${output}" output)
  string(REGEX MATCH "[^\n;]*error[^\n;]*" found "${output}")
  if(found STREQUAL "")
    string(REGEX MATCH "^[^\n;]*" found "${output}")
  endif()
  set(${line} "${found}" PARENT_SCOPE)
endfunction()

function(lehr_try_headers problem name)
  cmake_parse_arguments(ARG "" "SOURCE" "FLAGS;INCLUDES" ${ARGN})
  set(${problem} "" PARENT_SCOPE)
  file(STRINGS "${ARG_SOURCE}" includes REGEX "^#include <")
  set(tried ${ARG_INCLUDES} "${LEHR_TORCH_VERSION}" ${includes})
  if("${LEHR_${name}_WORKS}" STREQUAL "${tried}")
    return()
  endif()
  list(JOIN includes "\n" includes)
  set(source "${PROJECT_BINARY_DIR}/folder/try/${name}.cpp")
  file(WRITE "${source}" "${includes}\n")
  get_target_property(torch_includes lehr::torch INTERFACE_INCLUDE_DIRECTORIES)
  get_target_property(torch_definitions lehr::torch INTERFACE_COMPILE_DEFINITIONS)
  separate_arguments(flags UNIX_COMMAND "${CMAKE_CXX_FLAGS}")
  list(TRANSFORM torch_definitions PREPEND "-D")
  set(folders ${torch_includes} ${ARG_INCLUDES})
  list(TRANSFORM folders PREPEND "-isystem")
  execute_process(
    COMMAND "${CMAKE_CXX_COMPILER}" ${flags} -std=c++20 -fPIC -fsyntax-only ${ARG_FLAGS} ${torch_definitions} ${folders}
            "${source}"
    RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(result EQUAL 0)
    set(LEHR_${name}_WORKS "${tried}" CACHE INTERNAL "The headers that ${name} was compiled with")
    return()
  endif()
  lehr_first_error(line "${output}")
  set(${problem} "${line}" PARENT_SCOPE)
endfunction()
