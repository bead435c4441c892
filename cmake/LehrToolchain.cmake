# How compilers and linkers are used: lld and ccache where they are installed, and what makes programs start quickly.

find_program(LEHR_LLD ld.lld)
if(LEHR_LLD)
  add_link_options(-fuse-ld=lld)
endif()
# A program names only those libraries that it calls: every further one is loaded and relocated at start.
add_link_options(-Wl,--as-needed)
# An installed program finds LibTorch where the build found it.
set(CMAKE_INSTALL_RPATH_USE_LINK_PATH ON)

# ccache gives up on files that use a precompiled header unless it is told that their macros and times are harmless, and
# the compilers must write headers that depend on their text alone.
if(LEHR_CCACHE)
  find_program(LEHR_CCACHE_PROGRAM ccache)
  if(LEHR_CCACHE_PROGRAM)
    set(CMAKE_CXX_COMPILER_LAUNCHER
        "${CMAKE_COMMAND}" -E env
        CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime "${LEHR_CCACHE_PROGRAM}")
  endif()
endif()
if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
  add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:SHELL:-Xclang -fno-pch-timestamp>")
else()
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-fpch-preprocess>)
endif()
