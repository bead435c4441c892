#!/usr/bin/env bash
# Runs clang-tidy: on the sources that differ from the main branch, on those given as arguments, or on all.
#
#   script/tidy.sh                                           what differs from the main branch, with the checks of .clang-tidy
#   script/tidy.sh --checks='-*,bugprone-unchecked-optional-access' --all       one check, all sources of lehr/ and app/
#   script/tidy.sh --checks=... --all --share 3/8            every eighth of them, from the third on
#
# Uses the newest installed clang-tidy, 15 or later: bugprone-unchecked-optional-access is of 15, and an older one
# ignores the names that it does not know.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

stop() { echo "tidy: $*" >&2; exit 2; }

least=15
version_of() { "$1" --version 2>/dev/null | grep -oE 'version [0-9]+' | grep -oE '[0-9]+' | head -n 1; }

# Prints version and path of each clang-tidy, the newest last.
installed() {
  local program version
  for program in $(compgen -c clang-tidy | grep -xE 'clang-tidy(-[0-9]+)?' | sort -u); do
    version=$(version_of "$program") && [ -n "$version" ] && echo "$version $(command -v "$program")"
  done | sort -n
}
newest=$(installed | tail -n 1)
[ -n "$newest" ] || stop "clang-tidy is not installed; \`make tidy\` installs it"
read -r version program <<<"$newest"
[ "$version" -ge "$least" ] ||
  stop "the newest clang-tidy here is $version, and version $least or later is needed, which has the checks of .clang-tidy; \`make tidy\` installs one"
compiler=$(dirname "$(readlink -f "$program")")/clang++
[ -x "$compiler" ] || compiler=$(command -v "clang++-$version") ||
  stop "clang++ $version, which the package of clang-tidy $version brings, is not installed; clang-tidy needs a precompiled header of its own version"
[ -f build/dev/build.ninja ] || stop "there is no build/dev; run \`make tidy\`"

files=() options=() share=1/1 all=
while [ $# -gt 0 ]; do
  case $1 in
    --all) all=1 ;;
    --checks=*) options+=("$1") ;;
    --share)
      [[ ${2:-} =~ ^([1-9][0-9]*)/([1-9][0-9]*)$ && ${BASH_REMATCH[1]} -le ${BASH_REMATCH[2]} ]] ||
        stop "--share is K/N with K from 1 to N, found '${2:-}'"
      share=$2
      shift ;;
    -*) stop "expected --all, --checks=LIST, --share K/N or sources, found '$1'" ;;
    *) files+=("$1") ;;
  esac
  shift
done

if [ -n "$all" ]; then
  mapfile -t files < <(git ls-files 'lehr/*.cpp' 'app/*.cpp' | grep -v '^lehr/ops/cuda/' |
    awk -v first="${share%/*}" -v every="${share#*/}" '(NR - first) % every == 0')
elif [ ${#files[@]} = 0 ]; then
  base=$(git merge-base HEAD origin/main 2>/dev/null || git rev-parse HEAD)
  mapfile -t files < <({ git diff --name-only --diff-filter=d "$base"; git ls-files --others --exclude-standard; } |
    grep -E '^(lehr|app|test|bench)/.*\.cpp$' | sort -u)
fi
[ ${#files[@]} -gt 0 ] || { echo "tidy: no source differs from the main branch"; exit 0; }

# The sources use precompiled headers, which must come from clang-tidy's own version of clang: builds such headers, and
# a compilation database that names them. Warnings of a newer compiler are not errors.
own=build/dev/tidy-$version
mkdir -p "$own"
database=$own/compile_commands.json
sed -E "s|(\"command\": \")[^ ]+|\1$compiler|; s| -Werror( )|\1|g; s|[^ ]*CMakeFiles/([^ /]*)\.dir/cmake_pch\.hxx\.pch|$PWD/$own/\1.pch|g" \
  build/dev/compile_commands.json >"$database.new"
commands=$(grep -oE '"command": ".*-emit-pch.*"' "$database.new" | sed -E 's/^"command": "//; s/"$//; s/\\"/"/g')
for header in $(grep -oE "$own/[^ /]*\.pch" <<<"$commands" | sort -u); do
  if ! cmp -s "$database.new" "$database" || [ ! -f "$header" ] || [ -n "$(find lehr -name '*.h' -newer "$header" -print -quit)" ]; then
    command=$(grep -F "$header" <<<"$commands" | head -n 1)
    (cd build/dev && eval "$command -w")
  fi
done
mv "$database.new" "$database"  # last, so that a header that failed is compiled again
printf '%s\0' "${files[@]}" | xargs -0 -n 1 -P "${LEHR_TIDY_JOBS:-$(nproc)}" "$program" -p "$own" --quiet "${options[@]}"
echo "${#files[@]} passed clang-tidy $version"
