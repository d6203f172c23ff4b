# What processes of two clients do with the same files without thinking of it: a database, a mail folder, a lock file that is made
# with O_EXCL, and a log that is cut off while others append to it.
set -eu
. /share/lib.sh

mount_sluice
D=$M/together
if [ "$ROLE" = 1 ]; then mkdir $D; fi
barrier made

cat >/tmp/together.py <<'P'
import collections, errno, os, random, sqlite3, sys, time
what, folder, me, seconds = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
PROCESSES = 3
until = time.monotonic() + seconds

# sqlite in its default mode locks byte ranges, and makes and removes a journal for each transaction.
def begin_database():
    base = sqlite3.connect(f"{folder}/base", timeout=60)
    base.execute("create table counts (who integer primary key, n integer)")
    base.execute("create table told (who integer, n integer, text)")
    base.commit()

def database(pick, who):
    n = 0
    while time.monotonic() < until:
        base = sqlite3.connect(f"{folder}/base", timeout=60, isolation_level=None)
        for _ in range(pick.randrange(1, 9)):
            base.execute("begin immediate")
            base.execute("insert into counts values (?, 1) on conflict (who) do update set n = n + 1", (who,))
            base.execute("insert into told values (?, ?, ?)", (who, n, "x" * pick.randrange(2000)))
            base.execute("commit")
            n += 1
        base.close()
    return n

def end_database(told):
    base = sqlite3.connect(f"{folder}/base", timeout=60)
    assert base.execute("pragma integrity_check").fetchall() == [("ok",)]
    counts = dict(base.execute("select who, n from counts"))
    assert counts == told, f"{counts} counted of {told}"
    rows = collections.Counter(base.execute("select who, n from told"))
    assert len(rows) == sum(told.values()) and set(rows.values()) <= {1}, f"{len(rows)} rows of {told}"

# A message is written under tmp and renamed; whoever finds it first takes it away by renaming it once more.
def begin_mail():
    for name in ("tmp", "new", "taken"): os.mkdir(f"{folder}/{name}")

def mail(pick, who):
    n, taken = 0, 0
    while time.monotonic() < until:
        name = f"{who}.{n}"
        with open(f"{folder}/tmp/{name}", "w") as file:
            file.write(name * 50)
        os.rename(f"{folder}/tmp/{name}", f"{folder}/new/{name}")
        n += 1
        for name in sorted(os.listdir(f"{folder}/new"), key=lambda _: pick.random())[:3]:
            try:
                os.rename(f"{folder}/new/{name}", f"{folder}/taken/{name}.{who}")
            except FileNotFoundError:
                continue
            with open(f"{folder}/taken/{name}.{who}") as file:
                text = file.read()
            assert text == name * 50, f"{name} has {len(text)} bytes: {text[:40]}"
            taken += 1
    return n

def end_mail(told):
    left = os.listdir(f"{folder}/new")
    taken = collections.Counter(name.rsplit(".", 1)[0] for name in os.listdir(f"{folder}/taken"))
    assert os.listdir(f"{folder}/tmp") == []
    twice = [name for name, times in taken.items() if times > 1]
    assert not twice, f"taken twice: {twice[:5]}"
    assert not set(left) & set(taken), "taken, and still there"
    wrong = {f"{who}.{n}" for who in told for n in range(told[who])} ^ (set(left) | set(taken))
    assert not wrong, f"lost, or of nobody: {sorted(wrong)[:5]}"

# Who makes the lock file has the counter.
def begin_lockfile():
    with open(f"{folder}/counter", "w") as file: file.write("0")

def lockfile(pick, who):
    n = 0
    while time.monotonic() < until:
        try:
            os.close(os.open(f"{folder}/lock", os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        except FileExistsError:
            time.sleep(pick.random() / 100)
            continue
        with open(f"{folder}/counter") as file: counter = int(file.read())
        with open(f"{folder}/counter", "w") as file: file.write(f"{counter + 1}")
        os.unlink(f"{folder}/lock")
        n += 1
    return n

def end_lockfile(told):
    with open(f"{folder}/counter") as file: counter = int(file.read())
    assert counter == sum(told.values()), f"{counter} of {told}"
    assert os.listdir(folder) == ["counter"], os.listdir(folder)

# Processes of one client append, another cuts: never holes, never half a line.
def begin_rotated():
    pass

def rotated(pick, who):
    name, n = f"{folder}/log.{me}", 0
    while time.monotonic() < until:
        if who % 10 == 0:
            time.sleep(.1)
            if os.path.exists(name): os.truncate(name, 0)
            continue
        file = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        for _ in range(pick.randrange(1, 60)):
            os.write(file, f"{who} {n} {'x' * pick.randrange(60)}.\n".encode())
            n += 1
            if pick.random() < .05: os.fsync(file)
        os.close(file)
        data = open(name, "rb").read()
        assert b"\0" not in data, f"{data.count(0)} zeros from {data.index(0)} on of {len(data)}"
    return n

def end_rotated(told):
    for client in (1, 2):
        data = open(f"{folder}/log.{client}", "rb").read()
        assert b"\0" not in data, f"{data.count(0)} zeros from {data.index(0)} on of {len(data)}"
        last = {}
        for line in data.split(b"\n")[:-1]:
            who, n, text = line.split(b" ")
            assert text.endswith(b".") and last.get(who, -1) < int(n), line
            last[who] = int(n)

act = globals()
if len(sys.argv) > 5:
    if sys.argv[5] == "begin": act[f"begin_{what}"]()
    else:
        tell = [line.split() for client in (1, 2) for line in open(f"{folder}.{client}").read().split("\n")]
        told = {int(who): int(n) for who, n in tell}
        act[f"end_{what}"](told)
        print(f"{what}: {sum(told.values())}")
    sys.exit()
readers = []
for process in range(PROCESSES):
    reader, writer = os.pipe()
    if os.fork() == 0:
        who = me * 10 + process
        os.write(writer, f"{who} {act[what](random.Random(who), who)}".encode())
        os._exit(0)
    os.close(writer)
    readers.append(reader)
told = [os.read(reader, 64).decode() for reader in readers]
if any(os.wait()[1] for _ in readers): sys.exit("a process ended with an error")
with open(f"{folder}.{me}", "w") as file: file.write("\n".join(told))
P

together() { $PYTHON /tmp/together.py "$1" "$D/$1-$round-$where" "$ROLE" 3 ${2-} || fail "$1"; }
for round in $(seq $(((ROUNDS + 4) / 5))); do
  # Small files in the metadata, as shipped, and all of them in stripes at data servers.
  for where in shipped wide; do
    for what in database mail lockfile rotated; do
      step "round $round, $where: $what"
      if [ "$ROLE" = 1 ]; then
        mkdir "$D/$what-$round-$where"
        [ $where = shipped ] || policy "/together/$what-$round-$where" $where --inline off
        together $what begin
      fi
      barrier "begin-$what-$round-$where"
      together $what
      barrier "ran-$what-$round-$where"
      together $what end
      barrier "end-$what-$round-$where"
    done
  done
done
cd /; umount_sluice
echo PASS
