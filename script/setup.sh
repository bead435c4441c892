#!/usr/bin/env bash
# Installs everything that Lehr needs to compile on Debian 12 or Ubuntu 22.04+: system packages, and LibTorch in .venv.
#
# The compiler is clang, or the one that CXX names (CXX=g++ make train). Arguments name further system packages, which
# some targets of the Makefile need; `arrow` is Apache Arrow, as pyarrow in .venv.
# Installs only missing packages, and returns immediately if there are none. Exit code 2: a problem that only you can
# solve (no root, no disk space, an old Python); the message names the command to run.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# Packages of the compiler. clang, the default, compiles Lehr several times faster than g++. An installed compiler needs
# none.
compiler_packages() {
  if [ -z "${CXX:-}" ]; then
    echo clang lld make
  elif command -v "${CXX%% *}" >/dev/null; then
    echo make
  else
    echo "${CXX/clang++/clang}" make
  fi
}

# Keep in sync with cmake/LehrDependencies.cmake. Debian and Ubuntu use the same names.
read -ra packages <<<"$(compiler_packages)"
packages+=(
  ninja-build cmake pkg-config python3-venv
  coinor-libcbc-dev libfmt-dev libgloo-dev libgmock-dev libgtest-dev libpcre2-dev libsimdjson-dev libspdlog-dev
  libtomlplusplus-dev libzstd-dev nlohmann-json3-dev zlib1g-dev
)
wants_tidy=
wants_arrow=
for package in "$@"; do
  # In older releases the runtimes of clang's sanitizers are in the package clang itself.
  if [ "$package" = clang-tidy ]; then
    wants_tidy=1
  elif [ "$package" = arrow ]; then
    wants_arrow=1
  elif [ "$package" != sanitizers ]; then
    packages+=("$package")
  elif ! compgen -G '/usr/lib/llvm-*/lib/clang/*/lib/linux/libclang_rt.asan*' >/dev/null; then
    packages+=(libclang-rt-dev)
  fi
done
python=${PYTHON:-python3}
torch_gigabytes=8  # Disk space for the wheels (2.6 GB) and their contents (4.7 GB).

say() { printf 'setup: %s\n' "$*"; }
stop() { printf 'setup: %s\n' "$*" >&2; exit 2; }

# Retries once: downloads fail now and then.
twice() { "$@" || { say "failed, trying once more: $*"; sleep 5; "$@"; }; }

# Shows the end of what a command prints if it fails, and nothing otherwise.
quietly() {
  local log code=0
  log=$(mktemp)
  "$@" >"$log" 2>&1 || code=$?
  [ "$code" = 0 ] || tail -n 30 "$log" >&2
  rm -f "$log"
  return "$code"
}

missing_packages() {
  local installed
  installed=$(dpkg-query -W -f='${Package} ${db:Status-Status}\n' "${packages[@]}" 2>/dev/null || true)
  for package in "${packages[@]}"; do
    grep -qx "$package installed" <<<"$installed" || printf '%s\n' "$package"
  done
}

# True if a clang-tidy is installed that script/tidy.sh accepts.
has_tidy() {
  local program
  for program in $(compgen -c clang-tidy | grep -xE 'clang-tidy(-[0-9]+)?'); do
    ! has_version "$program" 15 || return 0
  done
  return 1
}

# The package of the newest clang-tidy: the default of Debian 12 and Ubuntu 22.04 is 14.
tidy_package() {
  local newest
  newest=$(apt-cache search --names-only '^clang-tidy-[0-9]+$' 2>/dev/null | awk '{ print $1 }' | sort -V | tail -n 1)
  echo "${newest:-clang-tidy}"
}

install_packages() {
  if ! command -v dpkg-query >/dev/null; then
    say "not Debian or Ubuntu: install your system's equivalents of: ${packages[*]}${wants_tidy:+ clang-tidy (15 or later)}"
    return
  fi
  local missing
  mapfile -t missing < <(missing_packages)
  if [ -n "$wants_tidy" ] && has_tidy; then
    wants_tidy=
  fi
  [ ${#missing[@]} -gt 0 ] || [ -n "$wants_tidy" ] || return 0

  local as_root=()
  if [ "$(id -u)" != 0 ]; then
    if ! { command -v sudo && sudo -n true; } >/dev/null 2>&1; then
      [ -z "$wants_tidy" ] || missing+=("$(tidy_package)")  # without package lists: clang-tidy, which may be too old
      stop "system packages are missing and this user may not install them. Run this, then the same command again:
  sudo apt-get update && sudo apt-get install -y --no-install-recommends ${missing[*]}"
    fi
    as_root=(sudo -n)
  fi
  local apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=300)
  say "installing system packages, for a minute or two: ${missing[*]}${wants_tidy:+ clang-tidy}"
  quietly twice "${apt[@]}" update
  [ -z "$wants_tidy" ] || missing+=("$(tidy_package)")
  quietly twice "${apt[@]}" install -y --no-install-recommends "${missing[@]}"
}

# True if the program $1 is installed in version $2 or later.
has_version() {
  local found
  found=$("$1" --version 2>/dev/null | grep -oE '[0-9]+\.[0-9]+(\.[0-9]+)?' | head -n 1) || return 1
  [ "$(printf '%s\n%s\n' "$2" "$found" | sort -V | head -n 1)" = "$2" ]
}

install_torch() {
  local wanted=(-r script/requirements.txt)
  has_version cmake 3.22 || wanted+=(cmake)
  has_version ninja 1.10 || wanted+=(ninja)

  # The stamp is written last, so the next run resumes a stopped or failed one.
  local stamp=.venv/.lehr-setup key
  # A pyarrow that this script installed follows the required version; one that somebody else installed is left alone.
  if [ -n "$wants_arrow" ] || grep -qs requirements_arrow "$stamp"; then
    wanted+=(-r script/requirements_arrow.txt)
  fi
  key="$(cksum script/requirements.txt) ${wanted[*]}"
  [[ $key != *arrow* ]] || key+=" $(cksum script/requirements_arrow.txt)"
  if [ -x .venv/bin/python ] && [ "$(cat "$stamp" 2>/dev/null)" = "$key" ]; then
    return 0
  fi

  if ! .venv/bin/python -c '' 2>/dev/null; then
    has_version "$python" 3.10 || stop "Python 3.10 or newer is needed, '$python' is $("$python" --version 2>&1 || true).
  Name another one: make setup PYTHON=/path/to/python3"
    say "creating the Python environment .venv"
    rm -rf .venv
    "$python" -m venv .venv
  fi
  if ! compgen -G '.venv/lib/python3*/site-packages/torch/lib/libtorch_cpu.so' >/dev/null; then
    local free
    free=$(df -Pk . | awk 'NR == 2 { print int($4 / 1048576) }')
    [ "$free" -ge "$torch_gigabytes" ] || stop "$free GB are free on this disk, LibTorch needs $torch_gigabytes to install"
    say "downloading LibTorch (the torch wheel and its CUDA libraries, 2.6 GB); this takes a few minutes"
  fi
  local quiet=()
  [ -t 1 ] || quiet=(--progress-bar off)
  # The wheels are 2.6 GB; a single installation needs no copy in pip's cache.
  [ -n "${PIP_CACHE_DIR:-}" ] || quiet+=(--no-cache-dir)
  twice .venv/bin/python -m pip install --disable-pip-version-check "${quiet[@]}" "${wanted[@]}"
  printf '%s\n' "$key" >"$stamp"
  say "done"
}

# Check the versions of the system's own cmake and ninja, not of those that an earlier run installed in .venv.
PATH=${PATH//"$PWD/.venv/bin:"/}
install_packages
install_torch
