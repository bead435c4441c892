# lehr_cuda: the CUDA kernels (lehr/ops/cuda/) as one module. The program does not link it, and so neither loads nor needs
# the CUDA libraries until a run asks for a CUDA device and opens liblehr_cuda.so beside it. LEHR_CUDA: AUTO builds it
# where all that it takes is found and works, ON stops where something is missing, OFF never builds it.
#
# nvcc is called by rules of their own instead of CMake's CUDA language: it would try compilers out at every first
# configuration, and hand nvcc options of the other compiler and linker that it does not know.

if(NOT LEHR_CUDA MATCHES "^(AUTO|ON|OFF)$")
  message(FATAL_ERROR "LEHR_CUDA: expected AUTO, ON or OFF, found '${LEHR_CUDA}'")
endif()
if(LEHR_CUDA STREQUAL "OFF")
  message(STATUS "CUDA kernels: not built (LEHR_CUDA is OFF)")
  return()
endif()

# A100 and, by its intermediate code, whatever comes later; H100 and H200.
set(LEHR_CUDA_ARCHITECTURES "arch=compute_80,code=[sm_80,compute_80]" "arch=compute_90a,code=sm_90a" CACHE STRING
  "What nvcc generates code for")
set(options -std=c++20 -O3 -DNDEBUG --expt-relaxed-constexpr "-I${PROJECT_SOURCE_DIR}"
  -Xcompiler=-fPIC,-Wall,-Wextra,-Wshadow,-Wno-unknown-pragmas)
foreach(architecture IN LISTS LEHR_CUDA_ARCHITECTURES)
  list(APPEND options "-gencode=${architecture}")
endforeach()
if(LEHR_WERROR)
  list(APPEND options -Werror=all-warnings -Xcompiler=-Werror)
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")  # else the g++ that nvcc finds
  list(APPEND options -ccbin "${CMAKE_CXX_COMPILER}")
endif()

# Compiles a kernel with the very options. Gives "", or the first error of what nvcc said. Once for the same call that
# works; one that does not is tried again, for what it lacks may have come.
function(lehr_try_nvcc problem)
  set(call "${LEHR_NVCC}" ${options})
  set(${problem} "" PARENT_SCOPE)
  if(LEHR_NVCC_WORKS STREQUAL "${call}")
    return()
  endif()
  set(folder "${PROJECT_BINARY_DIR}/folder/cuda/try")
  file(WRITE "${folder}/try.cu"
    "#include <cstdint>\n#include <tuple>\n__global__ void fill(float* x, int64_t i) { x[threadIdx.x + i] = 1; }\n")
  execute_process(COMMAND ${call} -c "${folder}/try.cu" -o "${folder}/try.o"
    RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(result EQUAL 0)
    set(LEHR_NVCC_WORKS "${call}" CACHE INTERNAL "The call of nvcc that compiled a kernel")
    return()
  endif()
  string(STRIP "${output}" output)
  string(REGEX MATCH "[^\n;]*error[^\n;]*" line "${output}")
  if(line STREQUAL "")
    string(REGEX MATCH "^[^\n;]*" line "${output} (${result})")
  endif()
  set(${problem} "${line}" PARENT_SCOPE)
endfunction()

find_program(LEHR_NVCC nvcc HINTS ENV CUDA_HOME ENV CUDA_PATH PATHS /usr/local/cuda PATH_SUFFIXES bin)
set(missing "")
if(NOT EXISTS "${LEHR_TORCH_DIR}/lib/libtorch_cuda.so")
  list(APPEND missing "a torch package for CUDA (libtorch_cuda.so)")
endif()
if(NOT LEHR_NVCC)
  list(APPEND missing nvcc)
else()
  get_filename_component(toolkit "${LEHR_NVCC}" REALPATH)
  get_filename_component(toolkit "${toolkit}/../.." ABSOLUTE)
  find_library(LEHR_CUDART cudart HINTS "${toolkit}" PATH_SUFFIXES lib64 lib targets/x86_64-linux/lib NO_DEFAULT_PATH)
  find_path(LEHR_CUDART_INCLUDE cuda_runtime_api.h
    HINTS "${toolkit}" PATH_SUFFIXES include targets/x86_64-linux/include NO_DEFAULT_PATH)
  if(NOT LEHR_CUDART OR NOT LEHR_CUDART_INCLUDE)
    list(APPEND missing "CUDA's runtime beside nvcc (libcudart.so, cuda_runtime_api.h)")
  endif()
  # A module of another major version would ask for a runtime that the wheel does not bring.
  file(STRINGS "${LEHR_TORCH_DIR}/version.py" of_torch REGEX "^cuda.*= *'[0-9]+")
  string(REGEX REPLACE "^cuda.*= *'([0-9]+).*" "\\1" of_torch "${of_torch}")
  execute_process(COMMAND "${LEHR_NVCC}" --version OUTPUT_VARIABLE of_nvcc ERROR_VARIABLE of_nvcc)
  string(REGEX MATCH "release ([0-9]+)" of_nvcc "${of_nvcc}")
  if(of_torch AND NOT of_nvcc STREQUAL "release ${of_torch}")
    list(APPEND missing "nvcc of CUDA ${of_torch}, with which torch was built (${LEHR_NVCC} says '${of_nvcc}')")
  endif()
  if(NOT missing)
    lehr_try_nvcc(problem)
    if(problem)
      list(APPEND missing "nvcc that compiles a kernel (${LEHR_NVCC} says: ${problem})")
    endif()
  endif()
endif()
if(missing)
  list(JOIN missing ", " missing)
  if(LEHR_CUDA STREQUAL "ON")
    message(FATAL_ERROR "LEHR_CUDA is ON, and there is no ${missing}")
  endif()
  message(STATUS "CUDA kernels: not built, there is no ${missing}; on a GPU operators run as plain ATen")
  return()
endif()
message(STATUS "CUDA kernels: built by ${LEHR_NVCC}")

set(objects "")
foreach(name norms rest)
  set(object "${PROJECT_BINARY_DIR}/folder/cuda/${name}.o")
  add_custom_command(OUTPUT "${object}"
    COMMAND "${CMAKE_COMMAND}" -E make_directory "${PROJECT_BINARY_DIR}/folder/cuda"
    COMMAND "${LEHR_NVCC}" ${options} -MD -MT "${object}" -MF "${object}.d"
            -c "${PROJECT_SOURCE_DIR}/lehr/ops/cuda/${name}.cu" -o "${object}"
    DEPENDS "${PROJECT_SOURCE_DIR}/lehr/ops/cuda/${name}.cu" DEPFILE "${object}.d"
    COMMENT "Building CUDA kernels ${name}" VERBATIM)
  list(APPEND objects "${object}")
endforeach()

add_library(lehr_cuda MODULE
  "${PROJECT_SOURCE_DIR}/lehr/ops/cuda/graph.cpp" "${PROJECT_SOURCE_DIR}/lehr/ops/cuda/module.cpp" ${objects})
set_source_files_properties(${objects} PROPERTIES EXTERNAL_OBJECT TRUE GENERATED TRUE)
set_target_properties(lehr_cuda PROPERTIES LIBRARY_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}" CXX_VISIBILITY_PRESET hidden)
target_include_directories(lehr_cuda PRIVATE "${PROJECT_SOURCE_DIR}")
target_include_directories(lehr_cuda SYSTEM PRIVATE "${LEHR_CUDART_INCLUDE}")
target_link_libraries(lehr_cuda PRIVATE
  lehr_warnings lehr::torch "${LEHR_TORCH_DIR}/lib/libtorch_cuda.so" "${LEHR_TORCH_DIR}/lib/libc10_cuda.so"
  "${LEHR_CUDART}")
install(TARGETS lehr_cuda LIBRARY DESTINATION bin)
