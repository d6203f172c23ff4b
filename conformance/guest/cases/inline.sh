# Small files live in the metadata: no data server hears of them until they grow, and nobody sees the difference.
set -eu
. /share/lib.sh

FILES=${FILES:-2000}
mount_sluice
D=$M/inline
if [ "$ROLE" = 1 ]; then mkdir -p $D; policy /inline default,inline=16KiB; mkdir $D/1 $D/2; fi
barrier made
uses_layouts || fail "the mount does not use flexible-file layouts"

orders() { host status | json 'j["mds"]["orders"]'; }
moved() { ds_bytes read | xargs -n1 | awk '{ n += $1 } END { print n + 0 }'; ds_bytes written | xargs -n1 | awk '{ n += $1 } END { print n + 0 }'; }
settled() { sleep 3; moved | xargs; }  # data servers tell their counters with their heartbeats

small() {  # COMMAND: over FILES files of 1 to 16384 bytes
  $PYTHON - "$1" $D/$2 "$FILES" <<'PY'
import os, sys
command, where, files = sys.argv[1], sys.argv[2], int(sys.argv[3])
for n in range(files):
    size = 1 + n * 977 % 16384
    want = bytes([n % 251]) * size
    path = "%s/f%05d" % (where, n)
    if command == "write":
        with open(path, "wb") as f: f.write(want)
    else:
        with open(path, "rb") as f: found = f.read()
        if found != want: sys.exit("FAIL %s: %d bytes of %d, or others" % (path, len(found), size))
PY
}

step "$FILES small files of each client"
before=$(settled); asked=$(orders); barrier looked
writes=$(op_count WRITE); layouts=$(op_count LAYOUTCOMMIT); start=$(now)
small write $ROLE
metric write_files_per_second "$(calc "$FILES / $(elapsed $start)")"
same $(($(op_count LAYOUTCOMMIT) - layouts)) 0 "LAYOUTCOMMITs for small files"
sent=$(($(op_count WRITE) - writes))
[ $sent -le $((FILES * 11 / 10)) ] || fail "$sent WRITEs for $FILES files"
barrier written
drop_caches
reads=$(op_count READ); start=$(now)
small read $((3 - ROLE))
metric read_files_per_second "$(calc "$FILES / $(elapsed $start)")"
metric reads_per_file "$(calc "($(op_count READ) - $reads) / $FILES")"
barrier read
same "$(settled)" "$before" "bytes read and written at data servers"
same $(($(orders) - asked)) 0 "calls of data servers for small files"
same "$(proxied)" 0 "proxied bytes"
[ "$(host status | json 'j["mds"]["inline_bytes_written"]')" -gt $((FILES * 8000)) ] || fail "nothing was counted as inline"
barrier counted

step "the metadata server dies among them"
mkdir $D/$ROLE/again
( for n in $(seq 300); do echo $n >$D/$ROLE/again/$n && [ "$(cat $D/$ROLE/again/$n)" = $n ] || exit 1; done ) & writer=$!
sleep 1
if [ "$ROLE" = 1 ]; then host kill mds; fi
wait $writer || fail "an operation failed"
barrier killed
drop_caches
for n in 1 2 150 300; do same "$(cat $D/$((3 - ROLE))/again/$n)" $n "a file across the restart"; done
small read $ROLE
barrier survived

step "files that grow"
# A line at a time through the limit, in the page cache and through it.
$PYTHON - $D/$ROLE <<'PY'
import mmap, os, sys
where = sys.argv[1]
def check(path, want):
    with open(path, "rb") as f:
        found = f.read()
    if found != want: sys.exit("FAIL %s: %d bytes of %d, or others" % (path, len(found), len(want)))
path, all = where + "/log", b""
for n in range(60):
    line = b"%05d " % n + bytes([65 + n % 26]) * 994 + b"\n"
    with open(path, "ab", buffering=0) as f:
        f.write(line); os.fsync(f.fileno())
    all += line
    if n % 7 == 0: check(path, all)
check(path, all)
# Mapped, from nothing to three pages and to more than the limit.
path = where + "/mapped"
with open(path, "w+b") as f:
    f.truncate(12288)
    with mmap.mmap(f.fileno(), 12288) as m: m[5000:5005] = b"here!"; m.flush()
    check(path, bytes(5000) + b"here!" + bytes(12288 - 5005))
    f.truncate(200000)
    with mmap.mmap(f.fileno(), 200000) as m: m[199990:199995] = b"there"; m.flush()
    check(path, bytes(5000) + b"here!" + bytes(199990 - 5005) + b"there" + bytes(5))
    f.truncate(5002)
check(path, bytes(5000) + b"he")
# Cut within the limit, and grown again: what was cut off is gone.
path = where + "/cut"
with open(path, "wb") as f: f.write(b"x" * 10000)
os.truncate(path, 100); os.truncate(path, 9000)
check(path, b"x" * 100 + bytes(8900))
# Around the page cache.
path = where + "/direct"
fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_DIRECT, 0o644)
page = mmap.mmap(-1, 4096); page[:] = b"d" * 4096
for at in (0, 4096, 12288, 65536): os.pwritev(fd, [page], at)
back = mmap.mmap(-1, 131072)
if os.preadv(fd, [back], 0) != 69632: sys.exit("FAIL O_DIRECT: short")
want = b"d" * 8192 + bytes(4096) + b"d" * 4096 + bytes(65536 - 16384) + b"d" * 4096
if back[:69632] != want: sys.exit("FAIL O_DIRECT: other bytes")
os.close(fd)
check(path, want)
PY
io write $D/$ROLE/large 64m 7 --sync
io verify $D/$ROLE/large 64m 7 --exact --direct
barrier grown
drop_caches
other=$((3 - ROLE))
same "$(stat -c %s $D/$other/log)" 60060 "a file that grew at the other client"
same "$(tail -n 1 $D/$other/log | cut -c1-5)" 00059 "its last line"
same "$(tail -c 4096 $D/$other/direct | tr -d d | wc -c)" 0 "O_DIRECT at the other client"
io verify $D/$other/large 64m 7 --exact

step "random operations, each checked"
$PYTHON /share/small.py $D/$ROLE/random --seed $((ROLE * 1000000)) --files "${SMALL_FILES:-60}"

step "copies, names, files without a name"
cp $D/$ROLE/f00007 $D/$ROLE/copy; cmp $D/$ROLE/f00007 $D/$ROLE/copy
cp $D/$ROLE/large $D/$ROLE/large2; cmp $D/$ROLE/large $D/$ROLE/large2
ln $D/$ROLE/copy $D/$ROLE/link; echo more >>$D/$ROLE/link; tail -n 1 $D/$ROLE/copy | grep -aq 'more$'
exec 8<>$D/$ROLE/nameless; echo alive >&8; rm $D/$ROLE/nameless
same "$(cat /proc/self/fd/8 2>/dev/null || dd if=/dev/fd/8 2>/dev/null)" alive "an unlinked file"
exec 8>&-
barrier copied

step "one file of both clients"
for n in 1 2 3 4 5 6; do
  if [ $((n % 2 + 1)) = "$ROLE" ]; then echo "line $n of $ROLE" >>$D/shared; fi
  barrier "line-$n"
  same "$(wc -l <$D/shared)" $n "lines in a file that two clients append to"
  barrier "seen-$n"
done
if [ "$ROLE" = 1 ]; then host sluice why /inline/1/f00007 | head -8; cd /; rm -r $D; fi
barrier removed
umount_sluice
echo PASS
