# Five processes of one client append to one log, synced or not, in a file that they open once or again and again: every line
# is there once. While one waits for its LAYOUTCOMMIT others write (ADR 0032). In every other round two more processes change
# and read everything else about the file: what comes back with that may say how long it was before.
set -eu
. /share/lib.sh

step "mount vers=$VERS"
mount_sluice
mkdir $M/logs
step "logs"
$PYTHON - $M/logs "$ROUNDS" <<'P'
import contextlib, fcntl, os, random, sys, time
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

def reads(name, pick):
    with open(name, "rb") as file:
        file.read()

def locks(name, pick):
    file = os.open(name, os.O_RDWR)
    fcntl.lockf(file, fcntl.LOCK_EX, 1, 1 << 40)
    os.close(file)

def allocates(name, pick):
    file = os.open(name, os.O_WRONLY)
    os.posix_fallocate(file, 0, 1)
    os.close(file)

def links(name, pick):
    other = f"{name}.{os.getpid()}"
    os.link(name, other)
    os.unlink(other)

def attributes(name, pick):
    # Version 4.1 has none.
    with contextlib.suppress(OSError):
        os.setxattr(name, "user.seen", str(pick.random()).encode())
        if pick.random() < .3:
            os.removexattr(name, "user.seen")

def times(name, pick):
    os.utime(name, (pick.randrange(1 << 30),) * 2)

def mode(name, pick):
    os.chmod(name, pick.choice([0o600, 0o644]))

def meddle(name, pick, what):
    until = time.monotonic() + SECONDS
    while time.monotonic() < until:
        with contextlib.suppress(FileNotFoundError):
            pick.choice(what)(name, pick)
        time.sleep(pick.random() / 100)
    return 0

MEDDLERS = [[attributes], [reads, locks, allocates, links, times, mode]]

bad = 0
for round in range(rounds):
    name = f"{folder}/{round}"
    pick = lambda who: random.Random(round * 100 + who)
    work = lambda who: write(name, who, pick(who)) if who < WRITERS else meddle(name, pick(who), MEDDLERS[who - WRITERS])
    told = crowd(range(WRITERS + round % 2 * len(MEDDLERS)), work)
    bad += not lines(name, told)
print(f"{bad} of {rounds} rounds lost something")
sys.exit(bad > 0)
P
cd /; umount_sluice
echo PASS
