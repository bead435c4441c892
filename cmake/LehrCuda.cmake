# lehr_cuda: the CUDA kernels (lehr/ops/*.cu) as one module. The program does not link it, and so neither loads nor needs
# the CUDA libraries until a run asks for a CUDA device and opens liblehr_cuda.so beside it. Included with LEHR_CUDA.

file(GLOB LEHR_CUDA_SOURCES CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/lehr/ops/*.cu")
if(NOT LEHR_CUDA_SOURCES)
  message(STATUS "LEHR_CUDA is on, and lehr/ops has no .cu file: there is no module to build")
  return()
endif()

if(NOT CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES 80 90a)  # A100; H100 and H200.
endif()
enable_language(CUDA)
# CMake 3.25 does not ask nvcc for C++20 by itself.
set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)

add_library(lehr_cuda MODULE ${LEHR_CUDA_SOURCES})
set_target_properties(lehr_cuda PROPERTIES
  CUDA_STANDARD 20 CUDA_RUNTIME_LIBRARY Shared LIBRARY_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}")
target_include_directories(lehr_cuda PRIVATE "${PROJECT_SOURCE_DIR}")
# ATen's headers use lambdas in device code, and constexpr functions on both sides.
target_compile_options(lehr_cuda PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr --extended-lambda>)
target_link_libraries(lehr_cuda PRIVATE
  lehr::torch fmt::fmt "${LEHR_TORCH_DIR}/lib/libtorch_cuda.so" "${LEHR_TORCH_DIR}/lib/libc10_cuda.so")
# Opening the module must bring ATen's own CUDA operators along, whether a kernel calls them by name or not.
target_link_options(lehr_cuda PRIVATE LINKER:--no-as-needed)
install(TARGETS lehr_cuda LIBRARY DESTINATION bin)
