# The key that handles of data files are sealed with is replaced while clients read and write: no error, nobody stands
# still for long, everything right. Twice: the second time the metadata server
# dies in the middle.
set -eu
. /share/lib.sh

SECONDS_EACH=${SECONDS_EACH:-20}
mount_sluice
D=$M/keys; mkdir $D $D/mirrors $D/wide
policy /keys small; policy /keys/mirrors small,mirrors=2; policy /keys/wide wide-any
for n in $(seq 8); do io write $D/f$n 1m $n --sync; done
io write $D/wide/long 48m 77 --sync

keys() { host sluice key list --json; }
sealing() { keys | json '[k["id"] for k in j["keys"] if k["state"] == "seals"][0]'; }

for round in once killed; do
  step "writers, readers, names; the key is replaced under them ($round)"
  before=$(sealing)
  writers=
  for n in 1 2; do io journal $D/log$round$n /tmp/log$round$n --seconds $SECONDS_EACH --stalls /tmp/stall$round$n & writers="$writers $!"; done
  io journal $D/mirrors/log$round /tmp/mirrors$round --seconds $SECONDS_EACH --stalls /tmp/stall$round & writers="$writers $!"
  io names $D/names$round --seconds $SECONDS_EACH & writers="$writers $!"
  $PYTHON /share/io.py reread $D --count 8 --seconds $SECONDS_EACH --stalls /tmp/stallr$round & writers="$writers $!"
  sleep 3
  start=$(now)
  if [ $round = once ]; then
    host sluice key rotate
    metric rotate_seconds "$(elapsed $start)" s
  else
    host sluice key rotate --no-wait
    host kill mds
    until keys >/tmp/keys 2>/dev/null && [ "$(json 'j["waits_for"]' </tmp/keys)" = "" ]; do
      awk -v took="$(elapsed $start)" 'BEGIN { exit !(took <= 180) }' || fail "still not replaced: $(cat /tmp/keys)"
      sleep 1
    done
    metric rotate_killed_seconds "$(elapsed $start)" s
  fi
  same "$(keys | json 'len(j["keys"])')" 1 "keys that open something"
  [ "$(sealing)" != "$before" ] || fail "the key is the same"
  for n in $writers; do wait $n || fail "a reader or writer saw an error"; done
  sort -n /tmp/stall*$round* | tail -1 >/tmp/worst
  metric ${round}_stall_seconds "$(cat /tmp/worst)" s
  awk -v took="$(cat /tmp/worst)" 'BEGIN { exit !(took <= 60) }' || fail "somebody stood still for $(cat /tmp/worst) s"
  drop_caches
  straight=$(proxied)
  for n in 1 2; do io check-journal $D/log$round$n /tmp/log$round$n; done
  io check-journal $D/mirrors/log$round /tmp/mirrors$round
  for n in $(seq 8); do io verify $D/f$n 1m $n --exact; done
  io verify $D/wide/long 48m 77 --exact
  io write $D/new$round 1m 5 --sync; drop_caches; io verify $D/new$round 1m 5 --exact
  # Who met a metadata server that was starting may go through it for a while.
  [ $round = killed ] || same $(( $(proxied) - straight )) 0 "bytes through the metadata server"
done
rm -r $D
umount_sluice
echo PASS
