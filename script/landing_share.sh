#!/usr/bin/env bash
# Prints which share of the rotating checks (script/test_all.sh) this commit runs: K/8.
#
# The number in .ci/share is the landing's, and `script/landing_share.sh --next` moves it on; do that once before you push.
# Where it was forgotten (the number is older than a day or 60 commits), the commits since then are added, so that shares
# still change from landing to landing.
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
  echo "landing: .ci/share was not moved on (script/landing_share.sh --next)" >&2
  number=$((number + since))
fi
echo "$(((number - 1) % count + 1))/$count"
