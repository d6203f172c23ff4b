"""What processes of two clients do with the same files: WHAT FOLDER CLIENT SECONDS [begin|end]."""
import collections, errno, fcntl, mmap, os, random, sqlite3, struct, sys, threading, time
sys.path.append("/share")
from crowd import crowd, lines
what, folder, me, seconds = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
PROCESSES = 3
until = time.monotonic() + seconds
# Whether a file that others read is synced before it is closed.
SYNC = bool(os.environ.get("SYNC"))

def synced(file):
    if SYNC:
        file.flush()
        os.fsync(file.fileno())

# The longest time between two steps of this process, and after what.
stalls, beaten = [(0, "")], time.monotonic()

def beat(after):
    global beaten
    now = time.monotonic()
    stalls.append((now - beaten, after))
    beaten = now

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
            beat("commit")
        base.close()
        beat("close")
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
            synced(file)
        beat("a message")
        os.rename(f"{folder}/tmp/{name}", f"{folder}/new/{name}")
        n += 1
        beat("its rename")
        for name in sorted(os.listdir(f"{folder}/new"), key=lambda _: pick.random())[:3]:
            try:
                os.rename(f"{folder}/new/{name}", f"{folder}/taken/{name}.{who}")
            except FileNotFoundError:
                continue
            with open(f"{folder}/taken/{name}.{who}") as file:
                text = file.read()
            assert text == name * 50, f"{name} has {len(text)} bytes: {text[:40]}"
            beat("taken")
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
    n, turns = 0, []
    while time.monotonic() < until:
        try:
            os.close(os.open(f"{folder}/lock", os.O_CREAT | os.O_EXCL | os.O_WRONLY))
            beat("locked")
        except FileExistsError:
            time.sleep(pick.random() / 100)
            continue
        with open(f"{folder}/counter") as file: counter = int(file.read())
        beat("counter read")
        turns.append((counter, n, time.monotonic()))
        with open(f"{folder}/counter", "w") as file:
            file.write(f"{counter + 1}")
            synced(file)
        beat("counter written")
        os.unlink(f"{folder}/lock")
        turns.append((counter, n, time.monotonic()))
        n += 1
    with open(f"{folder}.turns.{who}", "w") as file:
        file.write("\n".join(f"{seen} {n} {at:.3f}" for seen, n, at in turns))
    return n

def end_lockfile(told):
    with open(f"{folder}/counter") as file: counter = int(file.read())
    if counter != sum(told.values()):
        # Who found the same as somebody else, and when: at the beginning and at the end of his turn.
        read = lambda who: open(f"{folder}.turns.{who}").read().split("\n")
        turns = sorted((int(line.split()[0]), who, line) for who in told for line in read(who) if line)
        seen = collections.Counter(count for count, _, _ in turns)
        for count, who, line in turns:
            if any(seen[count + near] > 2 for near in range(-3, 4)): print(f"{who} found {line}")
    assert counter == sum(told.values()), f"{counter} of {told}"
    assert os.listdir(folder) == ["counter"], os.listdir(folder)

# Processes of one client append, another cuts: never holes, never half a line.
def begin_rotated():
    pass

# What a data server did not take that died Linux writes once more, also behind a truncation which another process has begun meanwhile:
# where they die, nothing is cut off that is not synced. Nobody begins to write while one waits to cut.
def rotated(pick, who):
    name, n = f"{folder}/log.{me}", 0
    turn, writing = (os.open(f"/tmp/{os.path.basename(folder)}.{what}", os.O_RDWR | os.O_CREAT) for what in ("turn", "writing"))
    lock = fcntl.flock if SYNC else lambda *_: None
    while time.monotonic() < until:
        if who % 10 == 0:
            time.sleep(.1)
            lock(turn, fcntl.LOCK_EX)
            lock(writing, fcntl.LOCK_EX)
            if os.path.exists(name): os.truncate(name, 0)
            lock(writing, fcntl.LOCK_UN)
            lock(turn, fcntl.LOCK_UN)
            continue
        lock(turn, fcntl.LOCK_EX)
        lock(writing, fcntl.LOCK_SH)
        lock(turn, fcntl.LOCK_UN)
        file = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        for _ in range(pick.randrange(1, 60)):
            os.write(file, f"{who} {n} {'x' * pick.randrange(60)}.\n".encode())
            n += 1
            if pick.random() < .05: os.fsync(file)
        beat("lines")
        if SYNC: os.fsync(file)
        os.close(file)
        lock(writing, fcntl.LOCK_UN)
        beat("close")
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

# One process, and threads that do not know of each other.
def begin_threads():
    pass

def threads(pick, who):
    name, counts = f"{folder}/log.{who}", [0] * 4
    def append(thread):
        pick, n, file = random.Random(who * 10 + thread), 0, os.open(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        while time.monotonic() < until:
            for _ in range(pick.randrange(1, 30)):
                os.write(file, f"{thread} {n} {'x' * pick.randrange(60)}.\n".encode())
                n += 1
            if pick.random() < .4: os.fsync(file)
            if pick.random() < .2: os.stat(name)
        if SYNC: os.fsync(file)
        os.close(file)
        counts[thread] = n
    every = [threading.Thread(target=append, args=(thread,)) for thread in range(len(counts))]
    for thread in every: thread.start()
    for thread in every: thread.join()
    return sum(counts)

def end_threads(told):
    for who in told:
        data = open(f"{folder}/log.{who}", "rb").read()
        lines, last = data.split(b"\n")[:-1], {}
        for line in lines:
            thread, n, text = line.split(b" ")
            assert text.endswith(b".") and last.get(thread, -1) + 1 == int(n), line
            last[thread] = int(n)
        assert len(lines) == told[who], f"{len(lines)} lines of {told[who]}"

# Pages of one file in memory, each of them one process' own.
PAGE, PAGES = 4096, 240
def begin_mapped():
    with open(f"{folder}/map", "wb") as file: file.truncate(PAGE * PAGES)

def mapped(pick, who):
    mine = [page for page in range(PAGES) if page % 6 == (who // 10 - 1) * PROCESSES + who % 10]
    counts, n = dict.fromkeys(mine, 0), 0
    while time.monotonic() < until:
        with open(f"{folder}/map", "r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
            for page in pick.sample(mine, 12):
                seen = memory[page * PAGE:(page + 1) * PAGE]
                assert seen == page_of(page, counts[page]), f"page {page} of {who} is not as it was left"
                counts[page] += 1
                memory[page * PAGE:(page + 1) * PAGE] = page_of(page, counts[page])
                n += 1
            if SYNC or pick.random() < .5: memory.flush()
            beat("pages")
        beat("unmapped")
    with open(f"{folder}/counts.{who}", "w") as file:
        file.write("\n".join(f"{page} {count}" for page, count in counts.items()))
        synced(file)
    return n

def page_of(page, count):
    return f"{page} {count} ".encode().ljust(PAGE, bytes([97 + count % 26])) if count else bytes(PAGE)

def end_mapped(told):
    counts = [line.split() for who in told for line in open(f"{folder}/counts.{who}").read().split("\n")]
    # Past the page cache: where two clients write one file at a time without locks, Linux takes the change attribute that comes
    # with its own writes for its own change, and may keep pages that the other has changed.
    data, file = mmap.mmap(-1, PAGE * PAGES), os.open(f"{folder}/map", os.O_RDONLY | os.O_DIRECT)
    done = 0
    while done < len(data):
        done += os.preadv(file, [memoryview(data)[done:]], done)
    assert sum(int(count) for _, count in counts) == sum(told.values())
    for page, count in counts:
        at = int(page) * PAGE
        assert data[at:at + PAGE] == page_of(int(page), int(count)), f"page {page}: {data[at:at + 20]} of {count}"

# A file that is replaced under those who read it: whole, never gone, never an older one than before.
def begin_replaced():
    replace(1, 0)

def replace(who, n):
    with open(f"{folder}/new.{who}", "w") as file:
        file.write(f"{n} " * (n % 700 * 20 + 1))
        synced(file)
    os.rename(f"{folder}/new.{who}", f"{folder}/file")

def replaced(pick, who):
    n, last = 0, -1
    while time.monotonic() < until:
        # Linux 6.1 moves a file out of the way before it renames another to its name, if some process of the same client has it
        # open: only the other client reads.
        if me == 1:
            if who == 10:
                n += 1
                replace(who, n)
                beat("replaced")
            time.sleep(pick.random() / 50)
            continue
        try: file = open(f"{folder}/file")
        except OSError as error:
            # Linux looks a name up once more when the file that it found is gone, and not twice: while the server is away both
            # may be replaced.
            if error.errno != errno.ESTALE: raise
            continue
        with file:
            if pick.random() < .3: time.sleep(pick.random() / 20)
            words = file.read().split()
        assert len(set(words)) == 1 and len(words) == int(words[0]) % 700 * 20 + 1, f"{len(words)} of {words[:1]}"
        assert int(words[0]) >= last, f"{words[0]} after {last}"
        last = int(words[0])
        beat("read")
    return n

def end_replaced(told):
    # A directory is taken for what it was a moment ago (acdirmin), but not for longer than that.
    for _ in range(70):
        words = open(f"{folder}/file").read().split()
        if int(words[0]) == sum(told.values()): break
        time.sleep(1)
    assert int(words[0]) == sum(told.values()), f"{words[0]} of {told}"
    assert os.listdir(folder) == ["file"], os.listdir(folder)

# A log of several processes of one client, opened once or again and again, synced or not.
def begin_appended():
    pass

def appended(pick, who):
    n, file = 0, None
    while time.monotonic() < until:
        if file is None:
            file = os.open(f"{folder}/log.{me}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        for _ in range(pick.randrange(1, 40)):
            os.write(file, f"{who} {n} {'x' * pick.randrange(60)}.\n".encode())
            n += 1
        do = pick.random()
        if do < .3: os.fsync(file)
        elif do < .4: os.fdatasync(file)
        elif do < .65:
            if SYNC: os.fsync(file)
            os.close(file)
            file = None
        beat("lines")
        time.sleep(pick.random() / 50)
    if file is not None: os.fsync(file)
    return n

def end_appended(told):
    for client in (1, 2):
        assert lines(f"{folder}/log.{client}", {who: n for who, n in told.items() if who // 10 == client}), f"the log of {client}"

# Counters side by side in a page, and lines at a file's end, under byte-range locks.
RECORDS, SIZE = 60, 733
def begin_counted():
    pass

def record(owner, count):
    return struct.pack(">QQ", owner, count).ljust(SIZE, bytes([65 + count % 26]))

def counted_in(data):
    if len(data) < SIZE or not any(data): return 0
    owner, count = struct.unpack(">QQ", data[:16])
    assert data == record(owner, count), f"a record is torn: {data[:40]}"
    return count

def counted(pick, who):
    n, file, log = 0, os.open(f"{folder}/counters", os.O_RDWR | os.O_CREAT), os.open(f"{folder}/log", os.O_RDWR | os.O_CREAT | os.O_APPEND)
    while time.monotonic() < until:
        at = pick.randrange(RECORDS) * SIZE
        fcntl.lockf(file, fcntl.LOCK_EX, SIZE, at)
        beat("locked")
        os.pwrite(file, record(who, counted_in(os.pread(file, SIZE, at)) + 1), at)
        if SYNC or pick.random() < .1: os.fsync(file)
        fcntl.lockf(file, fcntl.LOCK_UN, SIZE, at)
        beat("counted")
        fcntl.lockf(log, fcntl.LOCK_EX)
        beat("log locked")
        os.write(log, f"{who} {n} {'x' * pick.randrange(60)}.\n".encode())
        if SYNC: os.fsync(log)
        fcntl.lockf(log, fcntl.LOCK_UN)
        beat("logged")
        n += 1
    os.close(file)
    os.close(log)
    return n

def end_counted(told):
    data = open(f"{folder}/counters", "rb").read()
    shown = sum(counted_in(data[at:at + SIZE]) for at in range(0, len(data), SIZE))
    assert shown == sum(told.values()), f"{shown} counted of {told}"
    assert lines(f"{folder}/log", told), "the log"

act = globals()
if len(sys.argv) > 5:
    if sys.argv[5] == "begin": act[f"begin_{what}"]()
    else:
        tell = [line.split() for client in (1, 2) for line in open(f"{folder}.{client}").read().split("\n")]
        told = {int(who): int(n) for who, n in tell}
        act[f"end_{what}"](told)
        print(f"{what}: {sum(told.values())}")
    sys.exit()

def work(who):
    n = act[what](random.Random(who), who)
    longest, after = max(stalls)
    if longest > 2: print(f"{what} {who} stood still for {longest:.1f} s: {after}", flush=True)
    assert longest < float(os.environ.get("PATIENCE", "inf")), f"{who} stood still for {longest:.1f} s: {after}"
    return n

whos = range(me * 10, me * 10 + PROCESSES)
told = crowd(whos, work)
with open(f"{folder}.{me}", "w") as file:
    file.write("\n".join(f"{who} {much}" for who, much in told.items()))
    synced(file)
