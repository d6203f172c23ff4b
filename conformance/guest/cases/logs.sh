# Five processes of one client append to one log, synced or not, in a file that they open once or again and again: every line
# is there once. While one waits for its LAYOUTCOMMIT others write (ADR 0032).
set -eu
. /share/lib.sh

step "mount vers=$VERS"
mount_sluice
mkdir $M/logs
step "logs"
$PYTHON - $M/logs "$ROUNDS" <<'P'
import collections, os, random, sys, time
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
    name, told = f"{folder}/{round}", []
    for who in range(WRITERS):
        reader, writer = os.pipe()
        if os.fork() == 0:
            os.write(writer, str(write(name, who, random.Random(round * 100 + who))).encode())
            os._exit(0)
        os.close(writer)
        told.append(reader)
    told = [int(os.read(reader, 20)) for reader in told]
    for _ in told:
        os.wait()
    seen, torn = collections.Counter(), 0
    data = open(name, "rb").read()
    for line in data.split(b"\n")[:-1]:
        try:
            seen[tuple(map(int, line.split(b" ")[:2]))] += 1
        except ValueError:
            torn += 1
    lost = [(who, n) for who in range(WRITERS) for n in range(told[who]) if seen[who, n] != 1]
    print(f"round {round}: {sum(told)} lines, {len(lost)} lost {lost[:3]}, {torn} torn, zeros {data.count(0)}", flush=True)
    bad += bool(lost or torn)
print(f"{bad} of {rounds} rounds lost something")
sys.exit(bad > 0)
P
cd /; umount_sluice
echo PASS
