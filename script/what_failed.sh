#!/usr/bin/env bash
# The lines of a log that say what failed and where: what_failed.sh LOG.
sed -r 's/\x1b\[[0-9;]*m//g' "$1" | grep -nE \
  '(^|[^a-z])(fatal )?error: |warning: |^FAILED|Failure$|\[  FAILED  \] [A-Za-z_/]+\.|SUMMARY: [A-Za-z]*Sanitizer|runtime error:|survived|Timeout|Segmentation|Assertion' |
  awk '!seen[substr($0, index($0, ":"))]++' | head -n "${2:-20}" | cut -c1-300 | sed 's/^/    /'
