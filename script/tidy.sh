#!/usr/bin/env bash
# Runs clang-tidy on the sources that differ from the main branch, or on those given as arguments.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

command -v clang-tidy >/dev/null || { echo "tidy: clang-tidy is not installed (package clang-tidy)" >&2; exit 2; }
[ -f build/dev/build.ninja ] || { echo "tidy: there is no build/dev; run \`make tidy\`" >&2; exit 2; }

files=("$@")
if [ ${#files[@]} = 0 ]; then
  base=$(git merge-base HEAD origin/main 2>/dev/null || git rev-parse HEAD)
  mapfile -t files < <({ git diff --name-only --diff-filter=d "$base"; git ls-files --others --exclude-standard; } |
    grep -E '^(lehr|app|test|bench)/.*\.cpp$' | sort -u)
fi
[ ${#files[@]} -gt 0 ] || { echo "tidy: no source differs from the main branch"; exit 0; }

# The sources are compiled with the precompiled header, so clang-tidy needs it too.
ninja -C build/dev CMakeFiles/lehr_base.dir/cmake_pch.hxx.pch >/dev/null
printf '%s\0' "${files[@]}" | xargs -0 -n 1 -P "$(nproc)" clang-tidy -p build/dev --quiet
