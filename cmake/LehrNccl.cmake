# lehr_nccl: NCCL for ranks on GPUs (lehr/mesh/nccl_module.cpp) as a module, which the program loads when a run needs
# it. It contains no kernels, so CUDA's headers are enough and nvcc is not needed. LEHR_NCCL: AUTO builds it if all
# prerequisites are found, ON fails if something is missing, OFF never builds it.

if(NOT LEHR_NCCL MATCHES "^(AUTO|ON|OFF)$")
  message(FATAL_ERROR "LEHR_NCCL: expected AUTO, ON or OFF, found '${LEHR_NCCL}'")
endif()
if(LEHR_NCCL STREQUAL "OFF")
  message(STATUS "NCCL: not built (LEHR_NCCL is OFF); several ranks train on CPUs")
  return()
endif()

# CUDA's headers are in the torch package (script/requirements.txt adds those that its wheels lack), or in a CUDA
# toolkit.
set(missing "")
if(NOT EXISTS "${LEHR_TORCH_DIR}/lib/libtorch_cuda.so")
  list(APPEND missing "torch is not a package for CUDA (there is no libtorch_cuda.so)")
endif()
find_path(LEHR_CUDA_INCLUDE cusolverDn.h
  HINTS ENV CUDA_HOME ENV CUDA_PATH "${LEHR_TORCH_DIR}/../nvidia/cu13" PATHS /usr/local/cuda PATH_SUFFIXES include)
if(NOT LEHR_CUDA_INCLUDE)
  list(APPEND missing "there is no cusolverDn.h")
endif()
# The wheel's NCCL is the one that its libtorch_cuda.so loads.
find_path(LEHR_NCCL_INCLUDE nccl.h
  HINTS "${LEHR_TORCH_DIR}/../nvidia/nccl" PATHS "${LEHR_CUDA_INCLUDE}" /usr PATH_SUFFIXES include NO_CACHE)
if(NOT LEHR_NCCL_INCLUDE)
  list(APPEND missing "there is no nccl.h")
endif()

if(NOT missing)
  lehr_try_headers(problem NCCL SOURCE "${PROJECT_SOURCE_DIR}/lehr/mesh/nccl_module.cpp"
    FLAGS -DUSE_CUDA -DUSE_C10D_NCCL INCLUDES "${LEHR_NCCL_INCLUDE}" "${LEHR_CUDA_INCLUDE}")
  if(problem)
    list(APPEND missing "its headers do not compile (${problem})")
  endif()
endif()
if(missing)
  list(JOIN missing ", " missing)
  if(LEHR_NCCL STREQUAL "ON")
    message(FATAL_ERROR "LEHR_NCCL is ON, but ${missing}")
  endif()
  message(STATUS "NCCL: not built: ${missing}; several ranks train on CPUs")
  return()
endif()
message(STATUS "NCCL: built for ranks on GPUs (${LEHR_CUDA_INCLUDE}, ${LEHR_NCCL_INCLUDE})")

add_library(lehr_nccl MODULE "${PROJECT_SOURCE_DIR}/lehr/mesh/nccl_module.cpp")
set_target_properties(lehr_nccl PROPERTIES LIBRARY_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}")
target_include_directories(lehr_nccl PRIVATE "${PROJECT_SOURCE_DIR}")
target_include_directories(lehr_nccl SYSTEM PRIVATE "${LEHR_NCCL_INCLUDE}" "${LEHR_CUDA_INCLUDE}")
target_compile_definitions(lehr_nccl PRIVATE USE_CUDA USE_C10D_NCCL)
target_link_libraries(lehr_nccl PRIVATE
  lehr_warnings lehr::torch "${LEHR_TORCH_DIR}/lib/libtorch_cuda.so" "${LEHR_TORCH_DIR}/lib/libc10_cuda.so")
install(TARGETS lehr_nccl LIBRARY DESTINATION bin)
target_compile_definitions(lehr_mesh PRIVATE LEHR_HAS_NCCL)
