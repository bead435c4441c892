#!/usr/bin/env bash
# Prints the share K/8 of the rotating checks (script/test_all.sh) that this commit runs.
#
# K is in .ci/share; run `script/landing_share.sh --next` once before you push to increment it. If that was forgotten (K is
# older than a day or 60 commits), the number of commits since then is added, so that shares still rotate.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
count=8
number=$(cat .ci/share)
if [ "${1:-}" = --next ]; then
  echo $((number % count + 1)) >.ci/share
  exec "$0"
fi
last=$(git log -1 --format=%H -- .ci/share 2>/dev/null || true)
since=$(git rev-list --count "${last:-HEAD}..HEAD" 2>/dev/null || echo 0)
age=$(($(git log -1 --format=%ct) - $(git log -1 --format=%ct "${last:-HEAD}")))
if [ "$since" -gt 60 ] || [ "$age" -gt 86400 ]; then
  echo "landing: .ci/share was not incremented (script/landing_share.sh --next)" >&2
  number=$((number + since))
fi
echo "$(((number - 1) % count + 1))/$count"
