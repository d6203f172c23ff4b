# With two mirrors the loss of a data server is no error to anybody: readers and writers go on within half a minute,
# directly at the mirror that is left, and when the data server is back its mirrors are made equal again.
set -eu
. /share/lib.sh

# Documented bound: the metadata server notices within 8 s, layouts come back, and what did not is fenced.
BOUND=${BOUND:-30}
SECONDS_EACH=${SECONDS_EACH:-26}
mount_sluice
D=$M/mirrors; mkdir $D; policy /mirrors small,mirrors=2
for n in $(seq 8); do io write $D/f$n 1m $n --sync; done

degraded() { host status | json 'j["mds"]["degraded_files"]'; }
# bytes: what was written to each data server, as their heartbeats said last, by its number.
bytes() { host status | json '{int(d["address"].rsplit(":")[-1]) - 2049: d["bytes_written"] for d in j["data_servers"]}'; }
# busiest BYTES: the data server that most was written to since; it is the one to lose. What lay there before is only read.
busiest() { $PYTHON -c 'import sys; a, b = map(eval, sys.argv[1:]); print(max(b, key=lambda n: b[n] - a.get(n, 0)))' "$1" "$(bytes)"; }

# survives NAME LOSE: writers and a reader go on while a data server goes, by the request LOSE, and comes back.
survives() {
  local name=$1 lose=$2 n writers= before start ds
  step "$name"
  drop_caches
  sleep 3   # until heartbeats have told of what is there
  before=$(bytes)
  for n in 1 2 3 4; do io journal $D/$name$n /tmp/log-$name$n --seconds $SECONDS_EACH --stalls /tmp/stall-$name$n & writers="$writers $!"; done
  $PYTHON /share/io.py reread $D --count 8 --seconds $SECONDS_EACH --stalls /tmp/stall-$name-reader & writers="$writers $!"
  sleep 5
  ds=$(busiest "$before")
  host $lose ds$ds
  sleep 12
  before=$(proxied)
  sleep 4
  # What goes on goes on directly: some writer may have met the loss before the metadata server did.
  step "$name of data server $ds: $(degraded) files degraded, $(( $(proxied) - before )) bytes through the MDS in 4 s"
  [ "$(degraded)" -ge 1 ] || fail "$name: nothing says that files are degraded"
  metric ${name}_proxied_bytes_later $(( $(proxied) - before )) B
  [ $(( $(proxied) - before )) -eq 0 ] || fail "$name: writes go through the metadata server although a mirror is left"
  for n in $writers; do wait $n || fail "$name: a reader or writer saw an error"; done
  cat /tmp/stall-$name* | sort -n | tail -1 >/tmp/worst
  metric ${name}_stall_seconds "$(cat /tmp/worst)" s
  awk -v took="$(cat /tmp/worst)" -v bound=$BOUND 'BEGIN { exit !(took <= bound) }' || fail "$name: stood still for $(cat /tmp/worst) s, bound $BOUND s"
  drop_caches
  right $name
  step "back again"
  if [ $lose = lose ]; then host regain; else host unmute ds$ds; fi
  start=$(now)
  until [ "$(degraded)" = 0 ]; do
    awk -v took="$(elapsed $start)" 'BEGIN { exit !(took <= 60) }' || fail "$name: $(degraded) files still degraded: $(host status | json 'j["mds"]["healing"]')"
    sleep 0.5
  done
  metric ${name}_healed_seconds "$(elapsed $start)" s
  step "healed after $(elapsed $start) s"
  right $name
}

# right NAME: all data is, here and in a second mount that shares no cache.
right() {
  local n
  mount_sluice /mnt/second nosharecache
  for n in 1 2 3 4; do io check-journal $D/$1$n /tmp/log-$1$n >/dev/null; io check-journal /mnt/second/mirrors/$1$n /tmp/log-$1$n; done
  for n in $(seq 8); do io verify $D/f$n 1m $n --exact; io verify /mnt/second/mirrors/f$n 1m $n --exact; done
  umount_sluice /mnt/second
}

survives killed lose
# It accepts TCP and never answers.
survives mute mute
rm -r $D
umount_sluice
echo PASS
