# cp and copy_file_range: the servers copy, whatever the ranges, and what comes of it is the same as by hand.
set -eu
. /share/lib.sh

mount_sluice
D=$M/copies
mkdir -p $D/wide; policy /copies/wide wide
SIZE=256m
moved() { echo $(($(op_count READ) + $(op_count WRITE))); }
# cp begins with a CLONE, and needs no COPY where that can be had.
copied() { echo $(($(op_count COPY) + $(op_count CLONE))); }
# by_servers COMMAND...: copies without moving data itself
by_servers() {
  has_42 || { "$@"; return; }
  local copies=$(copied) before=$(moved)
  "$@"
  [ "$(copied)" -gt "$copies" ] || fail "$*: no COPY was sent"
  same "$(moved)" "$before" "READs and WRITEs of $*"
}

step "cp of $SIZE, there and back between shapes"
io write $D/one "$SIZE" 1 --sync
drop_caches
start=$(now); by_servers cp $D/one $D/two; metric cp_seconds "$(elapsed $start)"
drop_caches; io verify $D/two "$SIZE" 1 --exact
copies=$(op_count COPY)
start=$(now); by_servers cp --reflink=auto $D/two $D/wide/three; metric cp_wide_seconds "$(elapsed $start)"
if has_42; then [ "$(op_count COPY)" -gt "$copies" ] || fail "a file of another policy came to be by a clone"; fi
drop_caches; io verify $D/wide/three "$SIZE" 1 --exact
start=$(now); cat $D/one >$D/four; sync $D/four; metric cat_seconds "$(elapsed $start)"
rm $D/two $D/wide/three $D/four

step "small ones, and over what is there"
io write $D/small 12345 2 --sync; io write $D/over 40000 3 --sync
by_servers cp $D/small $D/over
io verify $D/over 12345 2 --exact
cp -p $D/small $D/kept
same "$(stat -c %Y $D/kept)" "$(stat -c %Y $D/small)" "the time that cp -p keeps"
cp $D/small $D/read-only; chmod 444 $D/read-only
cmp $D/small $D/read-only

step "holes stay holes"
truncate -s 300m $D/sparse
io write $D/sparse 1m 4 --offset 100m --sync
for how in auto always never; do
  cp --sparse=$how $D/sparse $D/sparse-$how
  drop_caches
  io sparse $D/sparse-$how 300m 100m:101m=4
done
whole() { $PYTHON -c 'import os,sys
a, b = os.open(sys.argv[1], os.O_RDONLY), os.open(sys.argv[2], os.O_WRONLY | os.O_CREAT, 0o644)
at = 0
while done := os.copy_file_range(a, b, 1 << 40, at, at): at += done' "$@"; }
by_servers whole $D/sparse $D/sparse-whole
drop_caches
io sparse $D/sparse-whole 300m 100m:101m=4
used=$(($(stat -c %b $D/sparse-whole) * 512))
if has_42; then [ $used -le $((4 << 20)) ] || fail "a copy of 1 MiB of data takes $used bytes"; fi

step "clones, where the data servers' file system can; else they are refused, and nothing is left"
truncate -s 5000 $D/over
if cp --reflink=always $D/one $D/over 2>/tmp/refused; then
  metric reflinks 1
  has_42 || fail "a clone over 4.1"
  drop_caches; io verify $D/over "$SIZE" 1 --exact
  io write $D/over 1m 9 --sync; drop_caches; io verify $D/one "$SIZE" 1 --exact
  # A range of a file in the same file, and what is not flushed yet counts.
  $PYTHON -c 'import fcntl, os, struct, sys
FICLONERANGE = 0x4020940D
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
data = os.urandom(5 << 20)
os.write(fd, data)
fcntl.ioctl(fd, FICLONERANGE, struct.pack("qQQQ", fd, 1 << 20, 2 << 20, 8 << 20))
assert os.pread(fd, 20 << 20, 0) == data + bytes(3 << 20) + data[1 << 20:3 << 20]
try: fcntl.ioctl(fd, FICLONERANGE, struct.pack("qQQQ", fd, 0, 2 << 20, 1 << 20)); sys.exit("it overlaps")
except OSError as error: assert error.errno == 22, error' $D/ranges
else
  metric reflinks 0
  grep -q "not supported" /tmp/refused || fail "$(cat /tmp/refused)"
  same "$(stat -c %s $D/over)" 0 "cp has emptied it"
  cp --reflink=auto $D/one $D/over; drop_caches; io verify $D/over "$SIZE" 1 --exact
fi

step "any range, beside a model"
$PYTHON - $D <<'PY'
import os, random, sys
d, dice = sys.argv[1], random.Random(5)
def make(name, size):
    data = dice.randbytes(size)
    fd = os.open(f"{d}/{name}", os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    os.write(fd, data)
    return fd, bytearray(data)
for turn in range(60):
    a, from_ = make("wide/a", dice.randrange(1, 3 << 20))
    b, to = make("b", dice.randrange(0, 3 << 20))
    for _ in range(8):
        src, dst = dice.randrange(len(from_)), dice.randrange(0, 4 << 20)
        n = dice.randrange(1, len(from_) - src + 1)
        left, at = n, 0
        while left:
            done = os.copy_file_range(a, b, left, src + at, dst + at)
            assert done > 0, (turn, src, dst, n)
            left, at = left - done, at + done
        if len(to) < dst + n:
            to.extend(bytes(dst + n - len(to)))
        to[dst:dst + n] = from_[src:src + n]
        if dice.random() < .3:  # what is written in between counts
            at = dice.randrange(len(from_))
            piece = dice.randbytes(min(100, len(from_) - at))
            os.pwrite(a, piece, at); from_[at:at + len(piece)] = piece
    if dice.random() < .5:
        os.system("echo 3 >/proc/sys/vm/drop_caches")
    got = os.pread(b, len(to) + 1, 0)
    assert got == to, f"turn {turn}: {len(got)} bytes, {len(to)} wanted"
    os.close(a); os.close(b)
PY
rm -r $D
umount_sluice
echo PASS
