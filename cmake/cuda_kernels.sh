#!/bin/sh
# Builds CUDA kernels (cmake/LehrCuda.cmake) that are optional: if nvcc fails, the build continues.
#
#   cuda_kernels.sh compile OBJECT CXX NVCC ARGUMENT...   runs NVCC ARGUMENT...; after a failure OBJECT is empty and
#                                                         OBJECT.failed has the first error
#   cuda_kernels.sh finish MODULE REASON OBJECT...        removes MODULE if one of the objects failed, and writes the
#                                                         reason to the file REASON
set -eu
verb=$1
shift
case $verb in
  compile)
    object=$1 cxx=$2
    shift 2
    rm -f "$object.failed"
    if told=$("$@" 2>&1); then
      [ -z "$told" ] || printf '%s\n' "$told"
      exit 0
    fi
    printf '%s\n' "$told" >&2
    { printf '%s\n' "$told" | grep -i -m 1 error || printf '%s\n' "$told" | tail -n 1; } >"$object.failed"
    : >"$object.d"
    "$cxx" -x c++ -fPIC -c /dev/null -o "$object"
    ;;
  finish)
    module=$1 reason=$2
    shift 2
    rm -f "$reason"
    for object in "$@"; do
      if [ -e "$object.failed" ]; then
        rm -f "$module"
        printf 'nvcc could not compile them: %s' "$(cat "$object.failed")" >"$reason"
        echo "CUDA kernels: left out, $(cat "$reason"). Run cmake again to try again; on a GPU operators run as plain ATen"
        exit 0
      fi
    done
    ;;
esac
