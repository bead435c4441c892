# Finds the LibTorch in the pinned torch wheel and creates the target lehr::torch.
#
# The wheel's own find_package(Torch) needs a CUDA toolchain as soon as the wheel was built with CUDA, and links the
# CUDA libraries into every program, which costs 0.15 s and 350 MB at start. Lehr links the CPU libraries only and loads
# the CUDA libraries when a run needs them, so this file names the required libraries itself. The installed package
# includes it, too.

if(TARGET lehr::torch)
  return()
endif()

set(LEHR_TORCH_VERSION 2.11.0)
set(LEHR_TORCH_DIR "" CACHE PATH "The torch package of a Python environment: .../site-packages/torch")

if(NOT LEHR_TORCH_DIR)
  file(GLOB candidates
       "${CMAKE_CURRENT_LIST_DIR}/../.venv/lib/python3*/site-packages/torch"
       "$ENV{VIRTUAL_ENV}/lib/python3*/site-packages/torch")
  list(APPEND candidates $ENV{LEHR_TORCH_DIR})
  foreach(candidate IN LISTS candidates)
    if(EXISTS "${candidate}/lib/libtorch_cpu.so")
      get_filename_component(candidate "${candidate}" REALPATH)
      set(LEHR_TORCH_DIR "${candidate}" CACHE PATH "" FORCE)
      break()
    endif()
  endforeach()
endif()
if(NOT EXISTS "${LEHR_TORCH_DIR}/lib/libtorch_cpu.so")
  message(FATAL_ERROR "LibTorch was not found. Run 'make setup' (it fills .venv), or pass "
                      "-DLEHR_TORCH_DIR=.../site-packages/torch of an environment with torch ${LEHR_TORCH_VERSION}.")
endif()

file(STRINGS "${LEHR_TORCH_DIR}/version.py" version_line REGEX "^__version__ = ")
if(NOT version_line MATCHES "'${LEHR_TORCH_VERSION}[+']")
  message(FATAL_ERROR "torch ${LEHR_TORCH_VERSION} is needed, ${LEHR_TORCH_DIR}/version.py says: ${version_line}")
endif()

# The wheel's libgomp, since a second OpenMP runtime in the process would compete for the same cores.
file(GLOB LEHR_TORCH_GOMP "${LEHR_TORCH_DIR}/lib/libgomp*.so*")
add_library(lehr::torch INTERFACE IMPORTED GLOBAL)
target_link_libraries(lehr::torch INTERFACE
  "${LEHR_TORCH_DIR}/lib/libtorch_cpu.so" "${LEHR_TORCH_DIR}/lib/libc10.so" ${LEHR_TORCH_GOMP})
target_include_directories(lehr::torch SYSTEM INTERFACE
  "${LEHR_TORCH_DIR}/include" "${LEHR_TORCH_DIR}/include/torch/csrc/api/include")
target_compile_definitions(lehr::torch INTERFACE _GLIBCXX_USE_CXX11_ABI=1 USE_DISTRIBUTED USE_C10D_GLOO)
