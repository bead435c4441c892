#!/usr/bin/env bash
# Runs commands as on a new machine: in a minimal Debian root with only make, git and ca-certificates, and a clone of HEAD.
# The root is a folder, or a disk image of a given size, and uses no programs of the host.
#
#   script/fresh_machine.sh [--suite bookworm] [--with "g++ clang"] [--disk 10G] [--cache DIR] [--keep] [COMMAND...]
#
#   --suite S       the Debian release: bookworm (12, the default), trixie (13), ...
#   --with LIST     packages to install before the commands
#   --disk SIZE     makes the root a disk image of that size, and measures its use
#   --cache DIR     keeps pip's downloads and the contents of $LEHR_CACHE between runs
#   --keep          keeps the root, and prints its path
#   COMMAND         shell commands to run in the clone; default: make train and make test
#
# LEHR_FRESH_DIR is the folder for the root (/var/tmp); LEHR_FRESH_ENV names variables to pass to the commands.
# Needs root privileges and debootstrap (which it installs). Exit code 77: such a root cannot be made here.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

suite=bookworm with='' disk='' cache='' keep=''
while [ $# -gt 0 ]; do
  case $1 in
    --suite) suite=$2; shift 2 ;;
    --with) with=$2; shift 2 ;;
    --disk) disk=$2; shift 2 ;;
    --cache) cache=$2; shift 2 ;;
    --keep) keep=yes; shift ;;
    --) shift; break ;;
    -*) echo "fresh machine: unknown option $1" >&2; exit 2 ;;
    *) break ;;
  esac
done
[ $# -gt 0 ] || set -- 'make train' 'make test'
say() { printf 'fresh machine: %s\n' "$*"; }

if [ -z "${LEHR_FRESH_INNER:-}" ]; then
  skip() { say "skipped: $*"; exit 77; }
  [ "$(id -u)" = 0 ] || skip "creating a root file system requires root privileges"
  # All mounts are in a private namespace, so none is left when the script ends, even if it is killed.
  unshare --mount --pid --fork --propagation private sh -c 'mount -t proc proc /mnt' 2>/dev/null ||
    skip "this sandbox allows no namespaces with mounts"
  command -v debootstrap >/dev/null || { apt-get -q update && apt-get -q install -y --no-install-recommends debootstrap; } \
    >/dev/null || skip "debootstrap cannot be installed here"
  LEHR_FRESH_INNER=$(mktemp -d "${LEHR_FRESH_DIR:-/var/tmp}/lehr-fresh.XXXXXX")
  export LEHR_FRESH_INNER
  options=(--suite "$suite")
  [ -z "$with" ] || options+=(--with "$with")
  [ -z "$disk" ] || options+=(--disk "$disk")
  [ -z "$cache" ] || options+=(--cache "$cache")
  clean_up() {
    kill -KILL "$child" 2>/dev/null || true
    wait "$child" 2>/dev/null || true
    if [ -n "$keep" ]; then
      say "the root is $LEHR_FRESH_INNER"
    else
      rm -rf --one-file-system "$LEHR_FRESH_INNER"
    fi
  }
  unshare --mount --pid --fork --kill-child --propagation private \
    bash "${BASH_SOURCE[0]}" "${options[@]}" -- "$@" &
  child=$!
  trap clean_up EXIT
  trap 'exit 143' TERM
  trap 'exit 130' INT
  code=0
  wait "$child" || code=$?
  exit "$code"
fi

root=$LEHR_FRESH_INNER/root
mkdir -p "$root"
if [ -n "$disk" ]; then
  truncate -s "$disk" "$LEHR_FRESH_INNER/disk"
  mkfs.ext4 -q -F -m 0 "$LEHR_FRESH_INNER/disk"
  mount -o loop "$LEHR_FRESH_INNER/disk" "$root"
fi

# The package mirror of this machine, else Debian's own.
mirror=$(cat /etc/apt/sources.list /etc/apt/sources.list.d/*.list /etc/apt/sources.list.d/*.sources 2>/dev/null |
  grep -vE '^ *#' | grep -oE '(http|https)://[^ ]*/debian/?( |$)' | head -n 1 | tr -d ' ' || true)
mirror=${mirror:-http://deb.debian.org/debian}
# Prints the end of a log, without the address of the package mirror.
end_of() { tail -n 5 "$1" | sed -E 's#(https?://)[^ ]+#\1...#g'; }
make_root() {
  debootstrap --variant=minbase --include=make,git,ca-certificates "$suite" "$root" "$mirror" >"$LEHR_FRESH_INNER/debootstrap.log" 2>&1
}
say "making a minimal $suite"
make_root || make_root || { end_of "$LEHR_FRESH_INNER/debootstrap.log"; say "debootstrap failed"; exit 1; }
# The host's network configuration.
printf 'deb %s %s main\n' "$mirror" "$suite" >"$root/etc/apt/sources.list"
for file in /etc/resolv.conf /etc/hosts /etc/pip.conf /etc/ssl/certs/ca-certificates.crt "${SSL_CERT_FILE:-}" \
  "${PIP_CERT:-}"; do
  [ ! -f "$file" ] || { mkdir -p "$root$(dirname "$file")" && cp -L "$file" "$root$file"; }
done
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
mount --rbind /sys "$root/sys"
git clone -q --no-hardlinks . "$root/root/lehr"
git -C "$root/root/lehr" remote remove origin
if [ -n "$cache" ]; then
  mkdir -p "$cache" "$root/root/.cache/lehr-ci"
  mount --bind "$cache" "$root/root/.cache/lehr-ci"
  export LEHR_CACHE=/root/.cache/lehr-ci PIP_CACHE_DIR=/root/.cache/lehr-ci/pip
fi

inside() {
  local kept=()
  for name in http_proxy https_proxy no_proxy HTTP_PROXY HTTPS_PROXY NO_PROXY PIP_INDEX_URL PIP_EXTRA_INDEX_URL PIP_TRUSTED_HOST PIP_CERT PIP_DEFAULT_TIMEOUT PIP_CACHE_DIR LEHR_CACHE \
    SSL_CERT_FILE CI ${LEHR_FRESH_ENV:-}; do
    [ -z "${!name:-}" ] || kept+=("$name=${!name}")
  done
  chroot "$root" env -i HOME=/root USER=root LANG=C.UTF-8 TERM="${TERM:-dumb}" \
    PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "${kept[@]}" bash -c "cd /root/lehr && $1"
}

if [ -n "$with" ]; then
  say "with $with"
  inside "apt-get -q update && apt-get -q install -y --no-install-recommends $with" >"$LEHR_FRESH_INNER/apt.log" 2>&1 ||
    { end_of "$LEHR_FRESH_INNER/apt.log"; exit 1; }
fi
say "compilers before: $(inside 'ls /usr/bin | grep -E "^(clang\+\+|g\+\+)(-[0-9]+)?$" | tr "\n" " "')"

used() { df -Pm "$root" | awk 'NR == 2 { print $3 }'; }
free_memory() { awk '/MemAvailable/ { print int($2 / 1000) }' /proc/meminfo; }
watch() { while sleep 2; do used >>"$LEHR_FRESH_INNER/used"; free_memory >>"$LEHR_FRESH_INNER/memory"; done; }
least() { awk 'NR == 1 || $1 < least { least = $1 } END { print least }' "$1"; }
most() { awk '$1 > most { most = $1 } END { print most }' "$1"; }
before=$(used)
memory=$(free_memory)
echo "$before" >"$LEHR_FRESH_INNER/used"
watch &

failed=0
for command in "$@"; do
  say "$command"
  start=$SECONDS
  code=0
  free_memory >"$LEHR_FRESH_INNER/memory"
  inside "$command" </dev/null || code=$?
  say "$command: exit code $code after $((SECONDS - start)) s;" \
    "memory in use at most $((memory - $(least "$LEHR_FRESH_INNER/memory"))) MB"
  [ "$code" = 0 ] || failed=1
done
if [ -n "$disk" ]; then
  say "disk: $(($(used) - before)) MB more than at the start, at most $(($(most "$LEHR_FRESH_INNER/used") - before)) MB on the way"
fi
say "compilers after: $(inside 'ls /usr/bin | grep -E "^(clang\+\+|g\+\+)(-[0-9]+)?$" | tr "\n" " "')"
exit "$failed"
