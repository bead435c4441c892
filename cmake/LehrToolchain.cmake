# Settings of compilers and linkers: lld and ccache if they are installed, and options for a fast start of programs.

# Not with g++: it writes functions of no length, and lld (14 at least) then lists them in .eh_frame_hdr in place of the
# function at the same address, through which an exception aborts the program.
if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
  find_program(LEHR_LLD ld.lld)
  if(LEHR_LLD)
    add_link_options(-fuse-ld=lld)
  endif()
endif()
# A program links only the libraries that it calls, since every other one would be loaded and relocated at start.
add_link_options(-Wl,--as-needed)

# ccache does not cache files with a precompiled header unless it is told that their macros and times are harmless, and
# unless the compilers write precompiled headers that depend only on their text. In depend mode it takes the included
# files from the compiler, and does not run the preprocessor over LibTorch's headers for each file that it has not cached.
if(LEHR_CCACHE)
  find_program(LEHR_CCACHE_PROGRAM ccache)
  if(LEHR_CCACHE_PROGRAM)
    set(CMAKE_CXX_COMPILER_LAUNCHER
        "${CMAKE_COMMAND}" -E env CCACHE_DEPEND=1
        CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime "${LEHR_CCACHE_PROGRAM}")
  endif()
endif()
if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
  add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:SHELL:-Xclang -fno-pch-timestamp>")
else()
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-fpch-preprocess>)
endif()
