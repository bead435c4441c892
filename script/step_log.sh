# Functions for scripts that run several steps and continue after a failure (.ci/steps, script/test_all.sh). Source this
# file and set `logs`.

# log_of NAME: prints the path of the step's log.
log_of() { echo "$logs/${1//[^A-Za-z0-9]/_}.log"; }

# run_step NAME COMMAND...: runs the command, copies its output to the step's log, and sets `code` and `what` (a line with
# name, exit code and time).
run_step() {
  local name=$1 start=$SECONDS
  shift
  printf '\n---- %s\n' "$name"
  "$@" </dev/null 2>&1 | tee "$(log_of "$name")"
  code=${PIPESTATUS[0]}
  what="$name (exit code $code, $(((SECONDS - start) / 60)) min $(((SECONDS - start) % 60)) s)"
}
