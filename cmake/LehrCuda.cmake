# lehr_cuda: the CUDA kernels (lehr/ops/*/kernel.cu) as one module. The program does not link it, and so neither loads nor
# needs the CUDA libraries until a run asks for a CUDA device and loads liblehr_cuda.so beside it. LEHR_CUDA: AUTO
# builds it if all prerequisites are found and work, ON fails if something is missing, OFF never builds it.
#
# Custom rules call nvcc instead of CMake's CUDA language, which would try out compilers at every first configuration,
# and pass options of the C++ compiler and linker to nvcc that it does not know.

if(NOT LEHR_CUDA MATCHES "^(AUTO|ON|OFF)$")
  message(FATAL_ERROR "LEHR_CUDA: expected AUTO, ON or OFF, found '${LEHR_CUDA}'")
endif()
if(LEHR_CUDA STREQUAL "OFF")
  message(STATUS "CUDA kernels: not built (LEHR_CUDA is OFF)")
  return()
endif()

set(LEHR_CUDA_ARCHITECTURES "" CACHE STRING
  "What nvcc generates code for, as arch=compute_80,code=sm_80; empty: sm_80, sm_90a and what newer ones nvcc knows")

# A module of another major version would need a runtime that the wheel does not contain, so the compiler must have
# torch's major version. Sets LEHR_NVCC to the first one that has; else to the first one found.
file(STRINGS "${LEHR_TORCH_DIR}/version.py" of_torch REGEX "^cuda.*= *'[0-9]+")
string(REGEX REPLACE "^cuda.*= *'([0-9]+).*" "\\1" of_torch "${of_torch}")
function(lehr_nvcc_release nvcc release)
  execute_process(COMMAND "${nvcc}" --version OUTPUT_VARIABLE told ERROR_VARIABLE told)
  string(REGEX MATCH "release [0-9]+" told "${told}")
  set(${release} "${told}" PARENT_SCOPE)
endfunction()
function(lehr_find_nvcc)
  find_program(LEHR_NVCC_ON_PATH nvcc NO_CACHE)
  file(GLOB versions "/usr/local/cuda-${of_torch}*/bin/nvcc")
  set(candidates "$ENV{CUDA_HOME}/bin/nvcc" "$ENV{CUDA_PATH}/bin/nvcc" "${LEHR_NVCC_ON_PATH}" /usr/local/cuda/bin/nvcc
    ${versions} "${LEHR_TORCH_DIR}/../nvidia/cu${of_torch}/bin/nvcc")
  set(first "")
  foreach(candidate IN LISTS candidates)
    if(NOT EXISTS "${candidate}" OR IS_DIRECTORY "${candidate}")
      continue()
    endif()
    if(NOT first)
      set(first "${candidate}")
    endif()
    lehr_nvcc_release("${candidate}" release)
    if(release STREQUAL "release ${of_torch}")
      set(first "${candidate}")
      break()
    endif()
  endforeach()
  set(LEHR_NVCC "${first}" CACHE FILEPATH "The compiler of CUDA kernels" FORCE)
endfunction()
set(of_nvcc "")
if(LEHR_NVCC AND EXISTS "${LEHR_NVCC}")
  lehr_nvcc_release("${LEHR_NVCC}" of_nvcc)
endif()
if(NOT of_nvcc STREQUAL "release ${of_torch}")
  lehr_find_nvcc()
endif()

# A100 and, by its PTX, all later architectures; H100 and H200; B200.
if(LEHR_NVCC AND NOT LEHR_CUDA_ARCHITECTURES)
  set(architectures "arch=compute_80,code=[sm_80,compute_80]" "arch=compute_90a,code=sm_90a")
  execute_process(COMMAND "${LEHR_NVCC}" --list-gpu-code OUTPUT_VARIABLE known ERROR_QUIET)
  if(known MATCHES "sm_100\n")
    list(APPEND architectures "arch=compute_100,code=sm_100")
  endif()
else()
  set(architectures ${LEHR_CUDA_ARCHITECTURES})
endif()
set(options -std=c++20 -O3 -DNDEBUG --expt-relaxed-constexpr "-I${PROJECT_SOURCE_DIR}"
  -Xcompiler=-fPIC,-Wall,-Wextra,-Wshadow,-Wno-unknown-pragmas)
foreach(architecture IN LISTS architectures)
  list(APPEND options "-gencode=${architecture}")
endforeach()
if(LEHR_WERROR)
  list(APPEND options -Werror=all-warnings -Xcompiler=-Werror)
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")  # otherwise nvcc uses the g++ that it finds
  list(APPEND options -ccbin "${CMAKE_CXX_COMPILER}")
endif()

# Compiles a kernel with the same options as the build. Returns "" or the first error of nvcc. A call that works is
# cached; a call that fails is tried again, since its prerequisites may have been installed.
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
  lehr_first_error(line "${output} (${result})")
  set(${problem} "${line}" PARENT_SCOPE)
endfunction()

# The reason why the program has no kernels, in a file beside it: `lehr train` prints it if there is a GPU.
set(reason_file "${PROJECT_BINARY_DIR}/liblehr_cuda.txt")
file(REMOVE "${reason_file}")
set(missing "")
if(NOT EXISTS "${LEHR_TORCH_DIR}/lib/libtorch_cuda.so")
  list(APPEND missing "a torch package for CUDA (libtorch_cuda.so)")
endif()
if(NOT LEHR_NVCC)
  list(APPEND missing nvcc)
else()
  get_filename_component(toolkit "${LEHR_NVCC}" REALPATH)
  get_filename_component(toolkit "${toolkit}/../.." ABSOLUTE)
  unset(LEHR_CUDART CACHE)  # nvcc may have changed since the last configuration
  unset(LEHR_CUDART_INCLUDE CACHE)
  find_library(LEHR_CUDART cudart HINTS "${toolkit}" PATH_SUFFIXES lib64 lib targets/x86_64-linux/lib NO_DEFAULT_PATH)
  find_path(LEHR_CUDART_INCLUDE cuda_runtime_api.h
    HINTS "${toolkit}" PATH_SUFFIXES include targets/x86_64-linux/include NO_DEFAULT_PATH)
  if(NOT LEHR_CUDART OR NOT LEHR_CUDART_INCLUDE)
    list(APPEND missing "CUDA's runtime beside nvcc (libcudart.so, cuda_runtime_api.h)")
  endif()
  lehr_nvcc_release("${LEHR_NVCC}" of_nvcc)
  if(of_torch AND NOT of_nvcc STREQUAL "release ${of_torch}")
    list(APPEND missing "nvcc of CUDA ${of_torch}, with which torch was built (${LEHR_NVCC} says '${of_nvcc}')")
  endif()
  if(NOT missing)
    lehr_try_nvcc(problem)
    if(problem)
      list(APPEND missing "nvcc that compiles a kernel (${LEHR_NVCC} says: ${problem})")
    endif()
    lehr_try_headers(problem CUDA SOURCE "${PROJECT_SOURCE_DIR}/lehr/ops/cuda/graph.cpp" INCLUDES "${LEHR_CUDART_INCLUDE}")
    if(problem)
      list(APPEND missing "set of CUDA headers that LibTorch's compile with (${problem})")
    endif()
  endif()
endif()
if(missing)
  list(JOIN missing ", " missing)
  if(LEHR_CUDA STREQUAL "ON")
    message(FATAL_ERROR "LEHR_CUDA is ON, and there is no ${missing}")
  endif()
  message(STATUS "CUDA kernels: not built, there is no ${missing}; on a GPU operators run as plain ATen")
  file(WRITE "${reason_file}" "there was no ${missing}")
  return()
endif()
list(JOIN architectures ", " told)
message(STATUS "CUDA kernels: built by ${LEHR_NVCC} for ${told}")

# A build with optional kernels (AUTO, and warnings are not errors) continues without them if nvcc fails in one; the
# failed kernel is compiled again after the next configuration.
set(script "${PROJECT_SOURCE_DIR}/cmake/cuda_kernels.sh")
set(may_fail FALSE)
if(LEHR_CUDA STREQUAL "AUTO" AND NOT LEHR_WERROR)
  set(may_fail TRUE)
endif()
file(GLOB failed "${PROJECT_BINARY_DIR}/folder/cuda/*.o.failed")
foreach(mark IN LISTS failed)
  string(REGEX REPLACE "\\.failed$" "" object "${mark}")
  file(REMOVE "${mark}" "${object}")
endforeach()
set(objects "")
file(GLOB kernels CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/lehr/ops/*/kernel.cu")
foreach(source IN LISTS kernels ITEMS "${PROJECT_SOURCE_DIR}/lehr/ops/cuda/probe.cu")
  get_filename_component(name "${source}" DIRECTORY)
  get_filename_component(name "${name}" NAME)
  set(object "${PROJECT_BINARY_DIR}/folder/cuda/${name}.o")
  set(start "")
  if(may_fail)
    set(start "${script}" compile "${object}" "${CMAKE_CXX_COMPILER}")
  endif()
  add_custom_command(OUTPUT "${object}"
    COMMAND "${CMAKE_COMMAND}" -E make_directory "${PROJECT_BINARY_DIR}/folder/cuda"
    COMMAND ${start} "${LEHR_NVCC}" ${options} -MD -MT "${object}" -MF "${object}.d"
            -c "${source}" -o "${object}"
    DEPENDS "${source}" DEPFILE "${object}.d"
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
if(may_fail)
  add_custom_command(TARGET lehr_cuda POST_BUILD
    COMMAND "${script}" finish "$<TARGET_FILE:lehr_cuda>" "${reason_file}" ${objects} VERBATIM)
endif()
install(TARGETS lehr_cuda LIBRARY DESTINATION bin OPTIONAL)
