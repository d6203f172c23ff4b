# Sourced by every suite that others wrote, inside the guest, with SUITE its folder and ONLY the part that was asked for.
. /share/lib.sh
SUITE=/share/suite

# verdict CODE pass|fail|skip [WORDS]: what a test said; the runner compares it with what is known.
verdict() {
  local code=$1 result=$2; shift 2
  printf 'RESULT\t%s\t%s\t%s\n' "$code" "$result" "$(printf '%s' "$*" | tr -s '\n\t ' ' ' | cut -c1-300)"
}
# wanted CODE: whether it begins as one of those that were asked for, with commas between.
wanted() {
  local begin
  [ -n "$ONLY" ] || return 0
  for begin in ${ONLY//,/ }; do case $1 in "$begin"*) return 0 ;; esac; done
  return 1
}
# trial CODE COMMAND...: runs a test in a shell of its own; its exit status is the verdict, its last words the reason.
trial() {
  local code=$1 began status=0; shift
  wanted "$code" || return 0
  began=$(now)
  ( set +e; trap - ERR; "$@" ) >/tmp/said 2>&1 || status=$?
  if [ $status = 0 ]; then
    verdict "$code" pass
  else
    tail -n 30 /tmp/said
    verdict "$code" fail "status $status: $(tail -n 3 /tmp/said)"
  fi
  echo "$code took $(elapsed "$began") s"
}
