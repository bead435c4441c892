# Finds every library other than LibTorch that Lehr links. The installed package includes this file as well, so that a
# project that calls find_package(lehr) gets the same targets. script/setup.sh installs these libraries.

find_package(Threads REQUIRED)
find_package(fmt REQUIRED)
find_package(spdlog REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(ZLIB REQUIRED)

# These have CMake files in some releases of Debian and Ubuntu only, and pkg-config files in all of them.
find_package(PkgConfig REQUIRED)
pkg_check_modules(pcre2 REQUIRED IMPORTED_TARGET GLOBAL libpcre2-8)
pkg_check_modules(simdjson REQUIRED IMPORTED_TARGET GLOBAL simdjson)
pkg_check_modules(tomlplusplus REQUIRED IMPORTED_TARGET GLOBAL tomlplusplus)
pkg_check_modules(zstd REQUIRED IMPORTED_TARGET GLOBAL libzstd)

# COIN-OR CBC. Its pkg-config file also names BLAS and LAPACK. A program that links them directly may use their functions
# in place of LibTorch's, which have the same names and are many times faster. So only the library with the C interface
# is linked.
pkg_check_modules(cbc REQUIRED cbc)
if(NOT TARGET lehr::cbc)
  find_library(LEHR_CBC_LIBRARY CbcSolver HINTS ${cbc_LIBRARY_DIRS} REQUIRED)
  add_library(lehr::cbc INTERFACE IMPORTED GLOBAL)
  target_link_libraries(lehr::cbc INTERFACE "${LEHR_CBC_LIBRARY}")
  target_include_directories(lehr::cbc SYSTEM INTERFACE ${cbc_INCLUDE_DIRS})
endif()

# The torch wheel contains the headers of another fmt version than the one that Lehr and spdlog link. So the right
# headers are in a folder of their own, which is searched before the wheel's.
get_target_property(LEHR_FMT_INCLUDE fmt::fmt INTERFACE_INCLUDE_DIRECTORIES)
file(MAKE_DIRECTORY "${CMAKE_BINARY_DIR}/include_first")
file(CREATE_LINK "${LEHR_FMT_INCLUDE}/fmt" "${CMAKE_BINARY_DIR}/include_first/fmt" SYMBOLIC)
target_include_directories(lehr::torch SYSTEM BEFORE INTERFACE "${CMAKE_BINARY_DIR}/include_first")
