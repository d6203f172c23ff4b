# A data server is emptied, taken out and stopped while clients read and write: no error, everything right, nothing left
# on it, and in the end nothing goes through the metadata server.
set -eu
. /share/lib.sh

SECONDS_EACH=${SECONDS_EACH:-30}
mount_sluice
D=$M/drain; mkdir $D $D/mirrors $D/wide
policy /drain small; policy /drain/mirrors small,mirrors=2; policy /drain/wide wide-any
for n in $(seq 8); do io write $D/f$n 1m $n --sync; done
io write $D/wide/long 96m 77 --sync
for n in $(seq 200); do echo "small $n" >$D/small$n; done
sync

servers() { host sluice ds list --json; }
# ds ID EXPRESSION: of one data server, called `d`.
ds() { servers | json "[$2 for d in j if d['id'] == $1][0]"; }

step "writers, readers, names; a data server is drained under them"
writers=
for n in 1 2 3; do io journal $D/log$n /tmp/log$n --seconds $SECONDS_EACH --stalls /tmp/stall$n & writers="$writers $!"; done
io journal $D/mirrors/log4 /tmp/log4 --seconds $SECONDS_EACH --stalls /tmp/stall4 & writers="$writers $!"
io names $D/names --seconds $SECONDS_EACH & writers="$writers $!"
$PYTHON /share/io.py reread $D --count 8 --seconds $SECONDS_EACH --stalls /tmp/stall6 & writers="$writers $!"
sleep 3
# The one that most was written to.
id=$(servers | json 'max(j, key=lambda d: d["bytes_written"])["id"]')
name=ds$(servers | json "[int(d['address'].rsplit(':')[-1]) - 2049 for d in j if d['id'] == $id][0]")
step "data server $id ($name): $(ds $id 'd["data_files"]') data files"
refused "drain it first" host sluice ds remove $id
start=$(now)
host sluice ds drain $id --no-wait
until [ "$(ds $id 'd["intent"]')" = drained ]; do
  awk -v took="$(elapsed $start)" 'BEGIN { exit !(took <= 120) }' || fail "still not drained: $(ds $id 'd["drain"]')"
  sleep 1
done
metric drain_seconds "$(elapsed $start)" s
step "drained after $(elapsed $start) s"
for n in $writers; do wait $n || fail "a reader or writer saw an error"; done
sort -n /tmp/stall* | tail -1 >/tmp/worst
metric drain_stall_seconds "$(cat /tmp/worst)" s
awk -v took="$(cat /tmp/worst)" 'BEGIN { exit !(took <= 30) }' || fail "somebody stood still for $(cat /tmp/worst) s"

host sluice ds remove $id
same "$(servers | json "[d['id'] for d in j if d['id'] == $id]")" "[]" "the list of data servers"
host lose $name
step "removed and stopped"

# right DIR: all data is, and comes straight from data servers.
right() {
  local n before
  before=$(proxied)
  for n in 1 2 3; do io check-journal $1/drain/log$n /tmp/log$n; done
  io check-journal $1/drain/mirrors/log4 /tmp/log4
  for n in $(seq 8); do io verify $1/drain/f$n 1m $n --exact; done
  io verify $1/drain/wide/long 96m 77 --exact
  for n in $(seq 200); do same "$(cat $1/drain/small$n)" "small $n" "a small file"; done
  same $(( $(proxied) - before )) 0 "bytes through the metadata server"
}
drop_caches
right $M
mount_sluice /mnt/second nosharecache
right /mnt/second
umount_sluice /mnt/second
before=$(proxied)
for n in $(seq 8); do io write $D/f$n 1m $((n + 50)) --sync; io write $D/new$n 1m $n --sync; done
drop_caches
for n in $(seq 8); do io verify $D/f$n 1m $((n + 50)) --exact; io verify $D/new$n 1m $n --exact; done
same $(( $(proxied) - before )) 0 "bytes through the metadata server"
host regain
rm -r $D
umount_sluice
echo PASS
