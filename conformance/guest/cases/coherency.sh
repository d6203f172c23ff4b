# What one client closed another reads; a truncate meets another client's read-write layout; random mapped reads.
set -eu
. /share/lib.sh

mount_sluice
D=$M/coherent
if [ "$ROLE" = 1 ]; then mkdir -p $D/wide; policy /coherent/wide wide; fi
barrier made

step "close-to-open, in turns"
for turn in $(seq 20); do
  writer=$((turn % 2 + 1))
  if [ "$ROLE" = $writer ]; then
    io write $D/turns $((turn * 100000)) "$turn" --trunc
    mkdir $D/dir-$turn
  fi
  barrier "turn-$turn"
  if [ "$ROLE" != $writer ]; then
    io verify $D/turns $((turn * 100000)) "$turn" --exact
    [ -d $D/dir-$turn ] || fail "the other client's directory is not seen"
  fi
  barrier "seen-$turn"
done

step "truncate under a read-write layout"
if [ "$ROLE" = 1 ]; then
  io write $D/wide/cut 100m 31
  exec 7<>$D/wide/cut
  dd if=/dev/zero of=/proc/self/fd/7 bs=1M count=1 seek=99 conv=notrunc oflag=direct 2>/dev/null
  barrier held; barrier truncated
  same "$(fresh_size $D/wide/cut)" 5000000 "size seen by the layout's holder after a GETATTR"
  io verify $D/wide/cut 5000000 31
  # Writing goes on with a new layout.
  io write $D/wide/cut 10m 32 --offset 20m --direct
  exec 7>&-
  barrier written
else
  barrier held
  truncate -s 5000000 $D/wide/cut
  same "$(fresh_size $D/wide/cut)" 5000000 "size after truncate"
  barrier truncated; barrier written
  io sparse $D/wide/cut 30m 0:5000000=31 20m:30m=32
fi

step "what an open writer synced, another client reads"
if [ "$ROLE" = 1 ]; then
  exec 8>$D/wide/synced
  $PYTHON -c 'import os; os.write(8, b"s"*3000000); os.fsync(8)'
  barrier synced; barrier read
  exec 8>&-
else
  barrier synced
  same "$(fresh_size $D/wide/synced)" 3000000 "size of a file that another client holds open"
  same "$(tr -d s <$D/wide/synced | wc -c)" 0 "its content"
  barrier read
fi

step "two writers of one file's halves, then each reads all"
half=$((33554432)); [ "$ROLE" = 1 ] && offset=0 || offset=$half
io write $D/wide/halves $half $((40 + ROLE)) --offset $offset --sync
barrier halves
drop_caches
io sparse $D/wide/halves $((2 * half)) 0:$half=41 $half:$((2 * half))=42

step "random mapped reads"
size=1g; if reference; then size=256m; fi
if [ "$ROLE" = 1 ]; then io write $D/wide/mapped $size 50 --sync; fi
barrier mapped
drop_caches
io mmap $D/wide/mapped $size 50 10000
barrier end
if [ "$ROLE" = 1 ]; then rm -r $D; fi
umount_sluice
echo PASS
