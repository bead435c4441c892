# lehr_nccl: NCCL for ranks on GPUs (lehr/mesh/nccl_module.cpp) as a module, which the program opens when a run asks for
# it. It holds no kernels, so CUDA's headers are enough and nvcc is not needed. LEHR_NCCL: AUTO builds it where all that
# it takes is found, ON stops where something is missing, OFF never builds it.

if(NOT LEHR_NCCL MATCHES "^(AUTO|ON|OFF)$")
  message(FATAL_ERROR "LEHR_NCCL: expected AUTO, ON or OFF, found '${LEHR_NCCL}'")
endif()
if(LEHR_NCCL STREQUAL "OFF")
  message(STATUS "NCCL: not built (LEHR_NCCL is OFF); several ranks train on CPUs")
  return()
endif()

# LibTorch's CUDA headers include all of these.
set(missing "")
if(NOT EXISTS "${LEHR_TORCH_DIR}/lib/libtorch_cuda.so")
  list(APPEND missing "a torch package for CUDA (libtorch_cuda.so)")
endif()
find_path(LEHR_CUDA_INCLUDE cusolverDn.h
  HINTS ENV CUDA_HOME ENV CUDA_PATH PATHS /usr/local/cuda "${LEHR_TORCH_DIR}/../nvidia/cu13" PATH_SUFFIXES include)
foreach(header cuda_runtime_api.h cublas_v2.h cublasLt.h cusparse.h cusolverDn.h)
  if(NOT EXISTS "${LEHR_CUDA_INCLUDE}/${header}")
    list(APPEND missing "${header} (CUDA toolkit)")
  endif()
endforeach()
# The wheel's NCCL is the one that its libtorch_cuda.so loads.
find_path(LEHR_NCCL_INCLUDE nccl.h
  HINTS "${LEHR_TORCH_DIR}/../nvidia/nccl" PATHS "${LEHR_CUDA_INCLUDE}" /usr PATH_SUFFIXES include NO_CACHE)
if(NOT LEHR_NCCL_INCLUDE)
  list(APPEND missing "nccl.h")
endif()
if(missing)
  list(JOIN missing ", " missing)
  if(LEHR_NCCL STREQUAL "ON")
    message(FATAL_ERROR "LEHR_NCCL is ON, and there is no ${missing}")
  endif()
  message(STATUS "NCCL: not built, there is no ${missing}; several ranks train on CPUs")
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
