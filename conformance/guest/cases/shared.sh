# Processes of two clients write one file under byte-range locks, as mail spools, job logs and small databases do: lines at its
# end, and counters that lie side by side in one page.
set -eu
. /share/lib.sh

mount_sluice
D=$M/shared
if [ "$ROLE" = 1 ]; then mkdir $D; fi
barrier made

cat >/tmp/shared.py <<'P'
import fcntl, os, random, struct, sys, time, zlib
sys.path.append("/share")
import crowd
what, name, me, seconds = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
PROCESSES, RECORDS, SIZE = 3, 150, 733
# A Linux client asks for a lock again after 30 s by itself: who waits longer than this was not told that it is free.
PATIENCE = 20

def locked(file, length=0, at=0):
    begun = time.monotonic()
    fcntl.lockf(file, fcntl.LOCK_EX, length, at)
    waited = time.monotonic() - begun
    assert waited < PATIENCE, f"{waited} s for a lock that others held for moments"
def free(file, length=0, at=0):
    fcntl.lockf(file, fcntl.LOCK_UN, length, at)

def lines(pick, who):
    until, n, file = time.monotonic() + seconds, 0, None
    while time.monotonic() < until:
        if file is None:
            file = os.open(name, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        locked(file)
        for _ in range(pick.randrange(1, 9)):
            os.write(file, f"{who} {n} {'x' * pick.randrange(60)}\n".encode())
            n += 1
        free(file)
        if pick.random() < .2:
            os.close(file)
            file = None
    return n

def record(owner, count):
    body = struct.pack(">QQ", owner, count)
    return (body + struct.pack(">I", zlib.crc32(body))).ljust(SIZE, bytes([65 + count % 26]))

def parsed(data):
    if len(data) < SIZE or not any(data): return 0
    owner, count, check = struct.unpack(">QQI", data[:20])
    assert zlib.crc32(data[:16]) == check and data == record(owner, count), f"a record is torn: {data[:40]}"
    return count

def counters(pick, who):
    until, n, file = time.monotonic() + seconds, 0, os.open(name, os.O_RDWR | os.O_CREAT)
    while time.monotonic() < until:
        at = pick.randrange(RECORDS) * SIZE
        locked(file, SIZE, at)
        os.pwrite(file, record(who, parsed(os.pread(file, SIZE, at)) + 1), at)
        n += 1
        if pick.random() < .1:
            os.fsync(file)
        free(file, SIZE, at)
    os.close(file)
    return n

if what in ("lines", "counters"):
    whos = range(me * 10, me * 10 + PROCESSES)
    told = crowd.crowd(whos, lambda who: globals()[what](random.Random(who), who))
    with open(f"{name}.{me}", "w") as file:
        file.write("\n".join(f"{who} {much}" for who, much in told.items()))
    sys.exit()

told = dict(map(int, line.split()) for client in (1, 2) for line in open(f"{name}.{client}").read().split("\n"))
if what == "counted":
    data = open(name, "rb").read()
    shown = sum(parsed(data[at:at + SIZE]) for at in range(0, len(data), SIZE))
    print(f"{sum(told.values())} times counted, {shown} shown")
    sys.exit(shown != sum(told.values()))
sys.exit(not crowd.lines(name, told))
P

for round in $(seq "$ROUNDS"); do
  step "round $round: lines"
  $PYTHON /tmp/shared.py lines $D/lines-$round "$ROLE" 3 || fail "lines"
  barrier lines-$round
  $PYTHON /tmp/shared.py read $D/lines-$round "$ROLE" 0 || fail "lines are lost"
  step "round $round: counters"
  $PYTHON /tmp/shared.py counters $D/counters-$round "$ROLE" 3 || fail "counters"
  barrier counters-$round
  $PYTHON /tmp/shared.py counted $D/counters-$round "$ROLE" 0 || fail "counts are lost"
  barrier counted-$round
done
# Both end at the same moment again and again: what one has in memory of before the other's last is not to be shown.
for round in $(seq $((ROUNDS * 4))); do
  $PYTHON /tmp/shared.py counters $D/ends-$round "$ROLE" 0.5 || fail "counters"
  barrier ends-$round
  $PYTHON /tmp/shared.py counted $D/ends-$round "$ROLE" 0 || fail "what one wrote last the other does not see"
  barrier seen-$round
done
cd /; umount_sluice
echo PASS
