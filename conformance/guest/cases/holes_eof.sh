# Guest 1 writes sparse files and checks them; guest 2 checks them before and after they are closed.
set -eu
. /share/lib.sh

mount_sluice
D=$M/holes
if [ "$ROLE" = 1 ]; then mkdir -p $D/wide $D/plain; policy /holes/wide wide; fi
barrier made

# Data in three islands: unaligned ends, islands smaller than a page and larger than a stripe, a hole at the end.
SIZE=$((40 * 1048576 + 12345))
ISLANDS="8192:12288=1 1050000:1051000=2 9000000:21000000=3"
check() {  # FILE
  io sparse "$1" $SIZE $ISLANDS
  io sparse "$1" $SIZE $ISLANDS --direct --steps 4096,65536,1m
  io sparse "$1" $SIZE $ISLANDS --direct --steps 3m
}
for kind in wide plain; do
  step "$kind"
  F=$D/$kind/file
  if [ "$ROLE" = 1 ]; then
    # Patterns depend on the offset alone, so an island is the pattern's own part of that range.
    part() { io write $F $(($2 - $1)) "$3" --offset "$1" "${@:4}"; }
    part 8192 12288 1 --direct
    part 1050000 1051000 2
    part 9000000 21000000 3
    truncate -s $SIZE $F
    check $F
    exec 7<>$F                                   # open for writing while the other guest looks
    step "$kind: closed"
    barrier "$kind-closed"; barrier "$kind-seen"
    dd if=/dev/zero of=/proc/self/fd/7 bs=4096 count=1 seek=$((60 * 256)) conv=notrunc,fsync 2>/dev/null
    barrier "$kind-grown"; barrier "$kind-seen-grown"
    exec 7>&-
    truncate -s $SIZE $F
    barrier "$kind-cut"; barrier "$kind-done"
    truncate -s 10000 $F; truncate -s $SIZE $F
    io sparse $F $SIZE 8192:10000=1
    io sparse $F $SIZE 8192:10000=1 --direct
    barrier "$kind-again"
  else
    barrier "$kind-closed"
    check $F
    barrier "$kind-seen"; barrier "$kind-grown"
    same "$(fresh_size $F)" $((60 * 1048576 + 4096)) "size while the writer holds it open"
    io sparse $F $((60 * 1048576 + 4096)) $ISLANDS --direct
    barrier "$kind-seen-grown"; barrier "$kind-cut"
    check $F
    barrier "$kind-done"; barrier "$kind-again"
    io sparse $F $SIZE 8192:10000=1
  fi
done

step "reads at and beyond the end"
if [ "$ROLE" = 1 ]; then
  $PYTHON - $D/wide/ends <<'P'
import mmap, os, sys
file = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT | os.O_DIRECT)
buffer = mmap.mmap(-1, 1 << 20)
def expect(count, offset, length=1 << 20):
    got = os.preadv(file, [memoryview(buffer)[:length]], offset)
    if got != count: print(f"FAIL a read of {length} at {offset} gave {got}, wanted {count}"); sys.exit(1)
expect(0, 0); expect(0, 1 << 20)
os.pwritev(file, [memoryview(buffer)[:4096]], 70 << 20)      # the first data, far from the start, not committed
expect(1 << 20, 0); expect(1 << 20, 63 << 20); expect(4096, 70 << 20); expect(0, (70 << 20) + 4096)
os.ftruncate(file, (90 << 20) + 7)
expect(1 << 20, 71 << 20); expect(7, 90 << 20); expect(7 + 4096, (90 << 20) - 4096)
os.ftruncate(file, 5)
expect(5, 0); expect(0, 4096)
os.close(file)
P
fi
barrier end
if [ "$ROLE" = 1 ]; then rm -r $D; fi
umount_sluice
echo PASS
