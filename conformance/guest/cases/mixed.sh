# Two clients that take different encodings of the layouts of one file.
set -eu
. /share/lib.sh

mount_sluice
D=$M/mixed
if [ "$ROLE" = 1 ]; then mkdir -p $D; policy /mixed wide-any; fi
barrier made
uses_layouts || fail "the mount does not use flexible-file layouts"

step "written here, read there"
for writer in 1 2; do
  if [ "$ROLE" = $writer ]; then io write $D/from-$writer 200m $writer --sync; fi
  barrier "written-$writer"
  if [ "$ROLE" != $writer ]; then
    io verify $D/from-$writer 200m $writer --exact
    io verify $D/from-$writer 200m $writer --exact --direct
    io write $D/from-$writer 20m 9 --offset 100m --direct      # and overwritten here
  fi
  barrier "overwritten-$writer"
  if [ "$ROLE" = $writer ]; then
    io sparse $D/from-$writer 200m 0:100m=$writer 100m:120m=9 120m:200m=$writer --steps 1m
  fi
done

step "both at once, records of one file under byte-range locks"
io records $D/locked --writer $((ROLE - 1)) --writers 2 --count 400 --lock
barrier locked
drop_caches
io check-records $D/locked --writers 2 --count 400 --whole 0,1

step "16 writers, 47,008-byte records, guest 2 killed"
# Guest 1 runs writers 0 to 7, guest 2 runs 8 to 15.
first=$(((ROLE - 1) * 8))
barrier start
pids=
for writer in $(seq $first $((first + 7))); do
  io records $D/n-to-1 --writer $writer --writers 16 --count 4096 --pause 0.02 & pids="$pids $!"
done
if [ "$ROLE" = 2 ]; then wait; sleep 100; exit 0; fi
sleep 2
host kill-guest 2
for pid in $pids; do wait "$pid" || fail "a writer of the surviving client saw an error"; done
step "what survived"
drop_caches
io check-records $D/n-to-1 --writers 16 --count 4096 --whole 0,1,2,3,4,5,6,7
io check-records $D/locked --writers 2 --count 400 --whole 0,1
rm -r $D
umount_sluice
echo PASS
