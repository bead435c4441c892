#!/usr/bin/env bash
# Makes the site from docs/ in build/site, or serves it while pages are edited: script/docs.sh build | serve [OPTION...]
# A broken link or anchor, or a page that the navigation lacks, fails. Installs mkdocs into .venv-docs first.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
verb=${1:-build}
[ $# = 0 ] || shift
script/python_env.sh .venv-docs site/requirements.txt
export NO_MKDOCS_2_WARNING=1  # the theme's notice about a later mkdocs; requirements.txt pins this one
case $verb in
  build) .venv-docs/bin/mkdocs build --strict --clean -f site/mkdocs.yml "$@" && echo "docs: open build/site/index.html" ;;
  serve) .venv-docs/bin/mkdocs serve -f site/mkdocs.yml "$@" ;;
  *) echo "docs: expected build or serve, found '$verb'" >&2; exit 2 ;;
esac
