# Four processes append to a new file, again and again: nothing is lost, nothing is torn.
# Each round makes, closes, returns and reopens at moments of its own: what a size that lags would show.
set -eu
. /share/lib.sh

step "mount vers=$VERS"
mount_sluice
mkdir $M/appends
step "appends"
$PYTHON - $M/appends $((ROUNDS * 20)) <<'P'
import os, sys
folder, rounds = sys.argv[1], int(sys.argv[2])
WRITERS, LINES = 4, 100
def line(writer): return b"%d%d23456789abcde\n" % (writer, writer)
bad = 0
for round in range(rounds):
    name = f"{folder}/{round}"
    for writer in range(WRITERS):
        if os.fork() == 0:
            file = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            for _ in range(LINES):
                os.write(file, line(writer))
            os.close(file)
            os._exit(0)
    failed = [status for _, status in (os.wait() for _ in range(WRITERS)) if status]
    data = open(name, "rb").read()
    counts = [data.count(line(writer)) for writer in range(WRITERS)]
    if failed or counts != [LINES] * WRITERS or len(data) != 16 * LINES * WRITERS:
        bad += 1
        print(f"round {round}: {len(data)} bytes, lines {counts}, zeros {data.count(0)}, exits {failed}, "
              f"inode {os.stat(name).st_ino}", flush=True)
print(f"{bad} of {rounds} rounds lost something")
sys.exit(bad > 0)
P
cd /; umount_sluice
echo PASS
