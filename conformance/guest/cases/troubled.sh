# What processes of two clients do together (together.py) while data servers die and come back, are mute, are emptied, and die with
# the metadata server: nobody sees an error and nothing is lost. It says who stood still for how long.
set -eu
. /share/lib.sh

mount_sluice
D=$M/troubled
if [ "$ROLE" = 1 ]; then mkdir $D; fi
barrier made

# Neither close(2) of Linux nor giving back a lock waits for what has to be sent again when a data server dies or a layout is
# recalled; fsync(2) does. Without this, messages, counts and turns of the lock file are lost.
export SYNC=1
seconds=24
ALL="database mail lockfile rotated threads mapped replaced appended counted"

run() { $PYTHON /share/together.py "$1" "$D/$name-$1" "$ROLE" $seconds ${2-} || fail "$name: $1 ${2-}"; }
state() { host sluice ds list --json | json "[d['intent'] for d in j if d['id'] == $1][0]"; }

# Each is begun by the first client some seconds after the work has begun.
killed() { local n; for n in 1 2 3 4 1 2; do host kill ds$n; sleep 2.5; done; }
lost() { host lose ds2; sleep 12; host regain; }
muted() { host mute ds3; sleep 12; host unmute ds3; }
# As far as it comes: mail makes files faster than they are moved.
drained() {
  local n try
  for n in 1 2; do
    host sluice ds drain $n --no-wait >/dev/null
    for try in $(seq 120); do [ "$(state $n)" = drained ] && break; sleep .25; done
    step "$name: data server $n is $(state $n)"
    host sluice ds undrain $n >/dev/null
  done
}
both() { local n; for n in 3 1; do host kill ds$n; host kill mds; sleep 8; done; }

# troubled NAME POLICY TROUBLE
troubled() {
  local name=$1 policy=$2 trouble=$3 what workers=()
  step "$name"
  for what in $ALL; do
    if [ "$ROLE" = 1 ]; then
      mkdir "$D/$name-$what"; policy "/troubled/$name-$what" $policy --inline off
      run $what begin
    fi
  done
  barrier "begin-$name"
  for what in $ALL; do run $what & workers+=($!); done
  if [ "$ROLE" = 1 ]; then sleep 3; $trouble; step "$name: that was it"; fi
  for worker in "${workers[@]}"; do wait $worker || fail "$name: an application saw an error"; done
  barrier "ran-$name"
  for what in $ALL; do run $what end; done
  barrier "end-$name"
  [ "$ROLE" = 2 ] || rm -r $D/*
  barrier "gone-$name"
}

for policy in wide,mirrors=2 wide; do
  for trouble in killed lost muted drained both; do
    troubled "$policy-$trouble" "$policy" $trouble
  done
done
cd /; umount_sluice
echo PASS
