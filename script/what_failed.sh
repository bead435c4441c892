#!/usr/bin/env bash
# Prints the lines of a log that report failures, or its end if there are none: what_failed.sh LOG [LINES].
lines=$(sed -r 's/\x1b\[[0-9;]*m//g' "$1" | grep -nE \
  '(^|[^a-z])(fatal )?error: |warning: |^FAILED|^CMake (Error|Warning)|: Failure$|\[  FAILED  \] [A-Za-z_/0-9]+\.|SUMMARY: [A-Za-z]*Sanitizer|runtime error:|undefined (reference|symbol)|survived|Timeout|Segmentation|Assertion|terminate called|No space left|(^|: )Killed|^E: |^setup: .*(needs|needed|missing|failed)|^format: these|^mutants: |^[^ ]+\.(cpp|h|cu):[0-9]+$' |
  awk '!seen[substr($0, index($0, ":"))]++' | head -n "${2:-20}" | cut -c1-300)
{ [ -n "$lines" ] && echo "$lines" || tail -n 15 "$1" | cut -c1-300; } | sed 's/^/    /'
