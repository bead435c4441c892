# lehr_cuda: the CUDA kernels (lehr/ops/*.cu) as one module. The program does not link it, and so neither loads nor needs
# the CUDA libraries until a run asks for a CUDA device and opens liblehr_cuda.so beside it.

function(lehr_cuda)
  file(GLOB kernels CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/lehr/ops/*.cu")
  if(NOT kernels)
    message(STATUS "LEHR_CUDA is on, and lehr/ops has no .cu file yet: nothing to build")
    return()
  endif()

  if(NOT CMAKE_CUDA_ARCHITECTURES)
    set(CMAKE_CUDA_ARCHITECTURES 80 90a)  # A100, H100 and H200.
  endif()
  enable_language(CUDA)
  find_package(CUDAToolkit REQUIRED)

  add_library(lehr_cuda MODULE ${kernels})
  set_target_properties(lehr_cuda PROPERTIES
    CUDA_ARCHITECTURES "${CMAKE_CUDA_ARCHITECTURES}" CUDA_STANDARD 20 CUDA_STANDARD_REQUIRED ON
    LIBRARY_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}" INSTALL_RPATH_USE_LINK_PATH ON)
  target_include_directories(lehr_cuda PRIVATE "${PROJECT_SOURCE_DIR}")
  # ATen's headers use lambdas in device code and constexpr functions on both sides.
  target_compile_options(lehr_cuda PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr --extended-lambda>)
  target_link_libraries(lehr_cuda PRIVATE
    lehr::torch fmt::fmt "${LEHR_TORCH_DIR}/lib/libtorch_cuda.so" "${LEHR_TORCH_DIR}/lib/libc10_cuda.so" CUDA::cudart)
  install(TARGETS lehr_cuda LIBRARY DESTINATION bin)
endfunction()
