# Five processes of one client append to one log, synced or not, in a file that they open once or again and again: every line
# is there once. While one waits for its LAYOUTCOMMIT others write (ADR 0032).
set -eu
. /share/lib.sh

step "mount vers=$VERS"
mount_sluice
mkdir $M/logs
step "logs"
$PYTHON - $M/logs "$ROUNDS" <<'P'
import os, random, sys, time
sys.path.append("/share")
from crowd import crowd, lines
folder, rounds = sys.argv[1], int(sys.argv[2])
WRITERS, SECONDS = 5, 4

def write(name, who, pick):
    until, n, file = time.monotonic() + SECONDS, 0, None
    while time.monotonic() < until:
        if file is None:
            file = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        for _ in range(pick.randrange(1, 40)):
            os.write(file, f"{who} {n} {'x' * pick.randrange(60)}\n".encode())
            n += 1
        what = pick.random()
        if what < .3:
            os.fsync(file)
        elif what < .4:
            os.fdatasync(file)
        elif what < .5:
            os.sync()
        elif what < .75:
            os.close(file)
            file = None
        if what > .9:
            time.sleep(pick.random() / 50)
    return n

bad = 0
for round in range(rounds):
    name = f"{folder}/{round}"
    told = crowd(range(WRITERS), lambda who: write(name, who, random.Random(round * 100 + who)))
    bad += not lines(name, told)
print(f"{bad} of {rounds} rounds lost something")
sys.exit(bad > 0)
P
cd /; umount_sluice
echo PASS
