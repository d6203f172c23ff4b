# Files get a second copy while clients read and write, survive the loss of a data server, and give it up again: no error,
# everything right, and nothing goes through the metadata server but for a moment.
set -eu
. /share/lib.sh

SECONDS_EACH=${SECONDS_EACH:-20}
mount_sluice
D=$M/more; mkdir $D $D/below $D/wide
policy /more small; policy /more/wide wide-any
for n in $(seq 12); do io write $D/f$n 4m $n --sync; done
for n in $(seq 4); do io write $D/below/b$n 4m $((n + 100)) --sync; done
io write $D/wide/long 96m 77 --sync
for n in $(seq 20); do echo "small $n" >$D/small$n; done
sync

# set COPIES: of all files, until it is done.
set_mirrors() { host sluice mirror set $1 more --json | json "$2"; }
# copies FILE: that clients are told of.
copies() { host sluice why more/$1 --json | json 'max(c["mirrors"] for c in j["components"])'; }

step "writers, readers, names; all files get a second copy under them"
same "$(copies f1)" 1 "copies before"
writers=
for n in 1 2 3; do io journal $D/log$n /tmp/log$n --seconds $SECONDS_EACH --stalls /tmp/stall$n & writers="$writers $!"; done
io journal $D/below/log4 /tmp/log4 --seconds $SECONDS_EACH --stalls /tmp/stall4 & writers="$writers $!"
io names $D/names --seconds $SECONDS_EACH & writers="$writers $!"
sleep 2
start=$(now)
same "$(set_mirrors 2 'len(j["left"])')" 0 "files left as they were"
metric more_seconds "$(elapsed $start)" s
for n in $writers; do wait $n || fail "a reader or writer saw an error"; done
sort -n /tmp/stall* | tail -1 >/tmp/worst
metric more_stall_seconds "$(cat /tmp/worst)" s
awk -v took="$(cat /tmp/worst)" 'BEGIN { exit !(took <= 30) }' || fail "somebody stood still for $(cat /tmp/worst) s"
same "$(copies f1) $(copies log1) $(copies below/b1) $(copies wide/long)" "2 2 2 2" "copies"
host sluice mirror compare --all

degraded() { host status | json 'j["mds"]["degraded_files"]'; }
# right DIR: all data is.
right() {
  local n
  for n in 1 2 3; do io check-journal $1/more/log$n /tmp/log$n; done
  io check-journal $1/more/below/log4 /tmp/log4
  for n in $(seq 12); do io verify $1/more/f$n 4m $n --exact; done
  for n in $(seq 4); do io verify $1/more/below/b$n 4m $((n + 100)) --exact; done
  io verify $1/more/wide/long 96m 77 --exact
  for n in $(seq 20); do same "$(cat $1/more/small$n)" "small $n" "a small file"; done
}
step "a data server dies: the other copies are read"
drop_caches
host lose ds1
right $M
host regain
start=$(now)
until [ "$(degraded)" = 0 ]; do
  awk -v took="$(elapsed $start)" 'BEGIN { exit !(took <= 60) }' || fail "$(degraded) files still degraded"
  sleep 0.5
done

step "and one copy again"
io journal $D/log5 /tmp/log5 --seconds 8 --stalls /tmp/stall5 & writer=$!
sleep 1
same "$(set_mirrors 1 'len(j["left"])')" 0 "files left as they were"
wait $writer || fail "a writer saw an error"
same "$(copies f1) $(copies log1) $(copies below/b1) $(copies wide/long)" "1 1 1 1" "copies"
drop_caches
before=$(proxied)
right $M
io check-journal $D/log5 /tmp/log5
same $(( $(proxied) - before )) 0 "bytes through the metadata server"
mount_sluice /mnt/second nosharecache
right /mnt/second
umount_sluice /mnt/second
rm -r $D
umount_sluice
echo PASS
