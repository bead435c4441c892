#!/usr/bin/env bash
# Formats all C++ and CUDA sources by .clang-format. --check changes nothing and fails if a file would change.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

command -v clang-format >/dev/null || { echo "format: clang-format is not installed (package clang-format)" >&2; exit 2; }
mapfile -t files < <(git ls-files --cached --others --exclude-standard '*.cpp' '*.h' '*.cu' | sort -u)
# Generated tables keep the layout of their script.
mapfile -t files < <(for file in "${files[@]}"; do [[ $file == *_tables.cpp ]] || [ ! -f "$file" ] || echo "$file"; done)

if [ "${1:-}" != --check ]; then
  clang-format -i "${files[@]}"
  exit
fi
differing=$(printf '%s\0' "${files[@]}" | xargs -0 -n 8 -P "$(nproc)" clang-format --dry-run -Werror 2>&1 |
  sed -n 's/^\([^:]*\):\([0-9]*\):.*error: code should be clang-formatted.*/\1:\2/p' | sort -u -t: -k1,1 || true)
if [ -n "$differing" ]; then
  printf 'format: these files differ from .clang-format, each from the line given on; run `make format`:\n%s\n' "$differing"
  exit 1
fi
echo "format: ${#files[@]} files are formatted by .clang-format"
