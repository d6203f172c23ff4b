# Servers die under a writer. The client goes on by itself, and nothing that fsync or fdatasync acknowledged is lost.
set -eu
. /share/lib.sh

mount_sluice
D=$M/restart; mkdir $D; policy /restart wide

# while_writing NAME REQUEST...: runs the requests, 3 s apart, while a writer appends and syncs.
while_writing() {
  local name=$1 writer request; shift
  step "$name"
  io journal $D/$name /tmp/log-$name --seconds $((${#@} * 3 + 6)) & writer=$!
  for request in "$@"; do sleep 3; host $request; done
  wait $writer || fail "$name: the writer saw an error"
  io check-journal $D/$name /tmp/log-$name
  drop_caches
  io check-journal $D/$name /tmp/log-$name
}

while_writing mds-killed "kill mds" "kill mds"
while_writing ds-killed "kill ds1" "kill ds2" "kill ds3"
while_writing all-killed "kill mds" "kill ds4" "kill ds1"

step "the MDS dies between a data server's COMMIT and LAYOUTCOMMIT"
# fdatasync sends COMMIT to the data servers, then LAYOUTCOMMIT: with the metadata server stopped the first succeeds
# and the second hangs, until a new incarnation has to answer it.
io write $D/window 8m 70 --sync
host mute mds
$PYTHON - $D/window <<'P' & writer=$!
import os, sys
sys.path.insert(0, "/share")
file = os.open(sys.argv[1], os.O_WRONLY)
os.pwrite(file, b"W" * (4 << 20), 8 << 20)
os.fdatasync(file)
os._exit(0)
P
sleep 2
host kill mds
wait $writer || fail "fdatasync saw an error"
host kill mds
same "$(stat -c %s $D/window)" $((12 << 20)) "size after fdatasync and two deaths of the MDS"
drop_caches
same "$(tail -c 4194304 $D/window | tr -d W | wc -c)" 0 "what fdatasync acknowledged"

step "open files, locks and unlinked files survive"
exec 7<>$D/held; echo before >&7
exec 8<>$D/nameless; echo alive >&8; rm $D/nameless
flock -n 7 || fail flock
host kill mds
sleep 1
echo after >&7
same "$(cat $D/held | xargs)" "before after" "a file open across the restart"
same "$(cat /proc/self/fd/8 2>/dev/null || dd if=/dev/fd/8 2>/dev/null)" alive "an unlinked file across the restart"
( exec 9<>$D/held; flock -n 9 ) && fail "the lock was lost"
exec 7>&- 8>&-

step "the MDS stands still for longer than a lease"
# What renewed the lease meanwhile lies unread in its sockets when it goes on.
exec 7<>$D/still; echo before >&7
flock -n 7 || fail flock
io journal $D/still-1 /tmp/log-still --seconds 36 & writer=$!
sleep 3; host mute mds; sleep 25; host unmute mds
wait $writer || fail "the writer saw an error"
io check-journal $D/still-1 /tmp/log-still
echo after >&7
same "$(cat $D/still | xargs)" "before after" "a file open all the while"
io write $D/still-2 1m 71 --sync
( exec 9<>$D/still; flock -n 9 ) && fail "the lock was lost while the server stood still"
exec 7>&-

step "ordinary operations while the MDS dies at random"
( for n in $(seq 400); do mkdir $D/m$n && echo $n >$D/m$n/f && mv $D/m$n/f $D/m$n/g && [ "$(cat $D/m$n/g)" = $n ] || exit 1; done ) & writer=$!
for delay in 0.7 1.9 3.1; do sleep $delay; host kill mds; done
wait $writer || fail "an operation failed or was done twice"
same "$(ls -d $D/m[0-9]* | wc -l)" 400 directories
host status | json '"proxied %d bytes, %d recalls" % (j["mds"]["proxied_bytes"], j["mds"]["recalls_sent"])'
cd /; rm -r $D
umount_sluice
echo PASS
