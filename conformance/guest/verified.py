"""Random operations on files that pass from client to client, each read compared byte for byte, while servers die.

A file's history is a function of the seed and of the file's number. Its clients take turns: who has the turn carries the
operations out and knows what each read must give; the other carries them out in memory alone, and finds every byte at the
servers when the turn is his. So no content travels between them but through the file.
"""
import argparse, ctypes, errno, fcntl, mmap, os, random, signal, socket, sys, time

PAGE = 4096
CELL = 16
HOST = (os.environ["HOST"], int(os.environ["HOST_PORT"])) if "HOST" in os.environ else None
libc = ctypes.CDLL(None, use_errno=True)


class Wrong(Exception):
    pass


def ask(request):
    """The host's answer (suite/stage.rs)."""
    with socket.create_connection(HOST) as line:
        line.sendall(request.encode() + b"\n")
        status, _, text = b"".join(iter(lambda: line.recv(65536), b"")).decode().partition("\n")
    if status != "0":
        raise RuntimeError(f"{request}: {text}")
    return text


def fallocate(file, mode, start, length):
    if libc.fallocate(file, mode, ctypes.c_int64(start), ctypes.c_int64(length)):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def written(who, step, start, length):
    """What a step writes: text that says who, in which step and where, so that a wrong byte tells where it is from."""
    first, last = start // CELL, (start + length - 1) // CELL
    text = "".join([f"{who:02x}.{step:05x}{at:08x}" for at in range(first, last + 1)]).encode()
    return text[start - first * CELL:][:length]


class Held:
    """What a file must hold and be called, and its next step."""

    def __init__(self, seed, who, kind, vers, without=()):
        self.who, (self.base, self.most) = who, KINDS[kind]
        self.choice = random.Random(seed * 1000 + who)
        self.data, self.name, self.step = bytearray(), 0, 0
        self.steps = [step for step, times in STEPS for _ in range(times) if step not in without and (vers != "4.1" or step not in ONLY_42)]

    def length(self, most):
        sizes = (1, 9, 700, PAGE, 3 * PAGE + 5, 65536, 300000)
        return self.choice.randint(1, max(1, min(most, self.choice.choice(sizes))))

    def range(self, most):
        start = self.choice.randrange(max(most, 1))
        if self.choice.random() < .4:
            start -= start % PAGE
        length = self.length(most - start)
        if self.choice.random() < .4 and length > PAGE:
            length -= length % PAGE
        return start, length

    def plan(self):
        """The next step and its arguments, the same for whoever asks."""
        self.step += 1
        step = self.choice.choice(self.steps)
        if not self.data and step in NOT_EMPTY:
            step = "write"
        if step in ("write", "direct", "durable", "allocate"):
            return (step, *self.range(self.most))
        if step == "append":
            room = self.most - len(self.data)
            return (step, self.length(room)) if room > 0 else ("cut", self.choice.randrange(self.most))
        if step in ("mapped", "punch", "read", "read_direct", "read_mapped", "read_other"):
            return (step, *self.range(len(self.data)))
        if step == "cut":
            # Mostly what is there, so that it does not grow for ever; now and then a hole at the end.
            return step, self.choice.randrange(self.choice.choice((len(self.data), len(self.data), self.most)) + 1)
        if step == "copy_within":
            start, length = self.range(len(self.data))
            to = self.choice.randrange(self.most)
            length = min(length, abs(to - start), self.most - to)
            return (step, start, to, length) if length else ("sync",)
        if step == "seek":
            return step, self.choice.randrange(len(self.data))
        return (step,)

    def put(self, start, data):
        if len(self.data) < start:
            self.data.extend(bytes(start - len(self.data)))
        self.data[start:start + len(data)] = data

    def apply(self, step, *a):
        """Does in memory what File does."""
        if step in ("write", "direct", "durable", "mapped"):
            self.put(a[0], written(self.who, self.step, *a))
        elif step == "append":
            self.data += written(self.who, self.step, len(self.data), a[0])
        elif step == "punch":
            self.put(a[0], bytes(min(a[1], len(self.data) - a[0])))
        elif step == "allocate":
            self.data.extend(bytes(max(0, a[0] + a[1] - len(self.data))))
        elif step == "cut":
            del self.data[a[0]:]
            self.data.extend(bytes(a[0] - len(self.data)))
        elif step == "copy_within":
            self.put(a[1], self.data[a[0]:a[0] + a[2]])
        elif step == "renew":
            self.data = bytearray()
        if step in RENAMING:
            self.name += 1


# Step, and how often of all. Of those that read, most are part of others.
STEPS = (("write", 6), ("direct", 3), ("durable", 1), ("append", 4), ("mapped", 4), ("allocate", 1), ("punch", 2), ("cut", 3),
         ("copy_within", 1), ("replace", 1), ("rename", 1), ("renew", 1), ("sync", 2), ("datasync", 1), ("reopen", 2),
         ("forget", 2), ("read", 5), ("read_direct", 3), ("read_mapped", 3), ("read_other", 2), ("seek", 1), ("check", 1))
ONLY_42 = ("allocate", "punch", "copy_within", "replace", "seek")
RENAMING = ("replace", "rename", "renew")
SYNCING = ("sync", "datasync", "forget")
NOT_EMPTY = ("mapped", "punch", "read", "read_direct", "read_mapped", "read_other", "copy_within", "seek")


# What a folder is called after: where the part of its files that is held begins, below which is a hole, and how long it may be.
# Small files outgrow the metadata again and again; stripes are of 1 MiB, or of 64, behind a first component of 64.
KINDS = {"inline": (0, 80 << 10), "small": (0, 400 << 10), "mirrors": (0, 700 << 10), "wide": (0, 4 << 20),
         "wide-mirrors": (0, 4 << 20), "default": ((64 << 20) - (200 << 10), 500 << 10),
         "default-mirrors": ((64 << 20) - (200 << 10), 500 << 10)}


class File:
    """The same at the servers."""

    def __init__(self, folder, held):
        self.folder, self.held = folder, held
        self.file = None

    def path(self, name=None):
        return f"{self.folder}/{self.held.who}.{self.held.name if name is None else name}"

    def open(self, flags=0):
        if self.file is not None:
            os.close(self.file)
        self.file = os.open(self.path(), os.O_RDWR | flags, 0o644)
        if flags:
            os.ftruncate(self.file, self.held.base)

    def other(self, flags, act):
        file = os.open(self.path(), flags)
        try:
            return act(file)
        finally:
            os.close(file)

    def whole(self, act, data):
        done = act(data)
        if done != len(data):
            raise Wrong(f"{done} bytes of {len(data)} were written")

    def do(self, step, *a):
        """Before Held.apply: `held` is what was. Reads come after it."""
        held = self.held
        at = held.base + a[0] if a else 0
        if step in ("write", "direct", "durable", "mapped"):
            data = written(held.who, held.step, *a)
        if step == "write":
            self.whole(lambda data: os.pwrite(self.file, data, at), data)
        elif step == "direct":
            with mmap.mmap(-1, len(data)) as memory:
                memory[:] = data
                put = lambda memory: self.other(os.O_WRONLY | os.O_DIRECT, lambda file: os.pwritev(file, [memory], at))
                self.whole(put, memory)
        elif step == "durable":
            self.whole(lambda data: self.other(os.O_WRONLY | os.O_DSYNC, lambda file: os.pwrite(file, data, at)), data)
        elif step == "append":
            data = written(held.who, held.step, len(held.data), a[0])
            self.whole(lambda data: self.other(os.O_WRONLY | os.O_APPEND, lambda file: os.write(file, data)), data)
        elif step == "mapped":
            with mmap.mmap(self.file, len(held.data), offset=held.base) as memory:
                memory[a[0]:a[0] + a[1]] = data
                if held.step % 3 == 0:
                    memory.flush()
        elif step == "punch":
            fallocate(self.file, 3, at, a[1])
        elif step == "allocate":
            fallocate(self.file, 0, at, a[1])
        elif step == "cut":
            os.ftruncate(self.file, at)
        elif step == "copy_within":
            self.copy(self.file, *a)
        elif step == "replace":
            file = os.open(self.path(held.name + 1), os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
            os.ftruncate(file, held.base)
            self.copy(file, 0, 0, len(held.data))
            if held.step % 2:
                os.fsync(file)
            # Over the old one, which takes the new name with it then.
            os.rename(self.path(held.name + 1), self.path())
            os.rename(self.path(), self.path(held.name + 1))
            os.close(self.file)
            self.file = file
        elif step == "rename":
            os.rename(self.path(), self.path(held.name + 1))
        elif step == "renew":
            os.unlink(self.path())
            os.close(self.file)
            self.file = os.open(self.path(held.name + 1), os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
            os.ftruncate(self.file, held.base)
        elif step == "sync":
            os.fsync(self.file)
        elif step == "datasync":
            os.fdatasync(self.file)
        elif step == "reopen":
            self.open()
        elif step == "forget":
            os.fsync(self.file)
            os.posix_fadvise(self.file, 0, 0, os.POSIX_FADV_DONTNEED)

    def copy(self, file, start, to, length):
        done, base = 0, self.held.base
        while done < length:
            more = os.copy_file_range(self.file, file, length - done, base + start + done, base + to + done)
            if not more:
                raise Wrong(f"a copy ended at {done} of {length}")
            done += more

    def look(self, step, *a):
        """What reads, compared with what is held."""
        if step == "seek":
            return self.seek(*a)
        if step == "check":
            a = (0, len(self.held.data) + 100)
        if step.startswith("read") or step == "check":
            self.compare(*a, self.read(step, *a))
        size = os.fstat(self.file).st_size - self.held.base
        if size != len(self.held.data):
            raise Wrong(f"it is {size} bytes long, wanted {len(self.held.data)}")

    def read(self, how, start, length):
        at = start + self.held.base
        if how == "read_mapped":
            with mmap.mmap(self.file, len(self.held.data), prot=mmap.PROT_READ, offset=self.held.base) as memory:
                return memory[start:start + length]
        if how == "read_direct":
            with mmap.mmap(-1, length) as memory:
                got = self.other(os.O_RDONLY | os.O_DIRECT, lambda file: os.preadv(file, [memory], at))
                return memory[:got]
        if how == "read_other":
            return self.other(os.O_RDONLY, lambda file: os.pread(file, length, at))
        return os.pread(self.file, length, at)

    def compare(self, start, length, found):
        wanted = bytes(self.held.data[start:start + length])
        if found == wanted:
            return
        first = next((n for n, (a, b) in enumerate(zip(found, wanted)) if a != b), min(len(found), len(wanted)))
        last = next((n for n in range(first, min(len(found), len(wanted)) - CELL)
                     if found[n:n + CELL] == wanted[n:n + CELL]), max(len(found), len(wanted)))
        raise Wrong(f"bytes {start + first} to {start + last - 1} of {len(self.held.data)} are wrong: found "
                    f"{found[first:first + 64]}, wanted {wanted[first:first + 64]}")

    def seek(self, start):
        """What is passed over as a hole is zeros."""
        try:
            data = os.lseek(self.file, self.held.base + start, os.SEEK_DATA) - self.held.base
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            data = len(self.held.data)
        if any(self.held.data[start:data]):
            raise Wrong(f"bytes {start} to {data - 1} are told to be a hole, and are none")

    def again(self):
        """After a wrong byte: what each way of reading says now."""
        said = []
        for how, how_read in (("as it is", "check"), ("O_DIRECT", "read_direct"), ("forgotten and read", "forgotten")):
            try:
                if how_read == "forgotten":
                    self.do("forget")
                    how_read = "check"
                length = len(self.held.data) + 100
                self.compare(0, length, self.read(how_read, 0, length))
                said.append(f"{how}: right")
            except (Wrong, OSError, ValueError) as error:
                said.append(f"{how}: {error}")
        return "; ".join(said)


def work(a, who):
    """The turns of one file that are this client's, and in memory those that are not."""
    folder = a.folders[who % len(a.folders)]
    held = Held(a.seed, who, os.path.basename(folder), a.vers)
    file, done, turn, end = File(folder, held), [], 0, False
    try:
        while True:
            mine = (who + turn) % a.guests == a.role - 1
            if mine and turn == 0:
                file.open(os.O_CREAT | os.O_EXCL)
            elif mine:
                end = ask(f"await {a.seed}.{who}.{turn - 1}") == "end"
                file.open()
                for how in ("check", "read_direct", "read_mapped"):
                    if held.data or how == "check":
                        done.append((f"the turn is ours, {how}",))
                        file.look(how, 0, len(held.data) or 1)
            if end:
                break
            for _ in range(held.choice.randint(1, 40)):
                step = held.plan()
                done.append(step)
                if mine:
                    file.do(*step)
                held.apply(*step)
                if mine:
                    file.look(*step)
            leave = held.choice.randrange(3)
            if mine:
                # Linux returns from close(2) before what must be written again is (OPERATIONS.md, Clients).
                if leave or a.trouble:
                    done.append(("sync",))
                    os.fsync(file.file)
                if leave != 1:
                    os.close(file.file)
                    file.file = None
                end = time.monotonic() > a.until
                ask(f"post {a.seed}.{who}.{turn} {'end' if end else 'on'}")
            turn += 1
    except (Wrong, OSError, ValueError, RuntimeError) as error:
        if "case has ended" in str(error):
            return 1
        print(f"FAIL seed {a.seed}: file {file.path()}, turn {turn}, step {held.step:#x}: {error!r}; before that "
              f"{' '.join(repr(step) for step in done[-16:])}", flush=True)
        if isinstance(error, Wrong):
            print(f"  {file.path()} now: {file.again()}", flush=True)
        return 1
    print(f"  {file.path()}: {turn} turns, {held.step} steps, {len(held.data)} bytes", flush=True)
    return 0


def alone(a, who):
    """Until this client is switched off: says which steps are behind a sync."""
    folder = a.folders[who % len(a.folders)]
    held = Held(a.seed, who, os.path.basename(folder), a.vers, RENAMING)
    file = File(folder, held)
    file.open(os.O_CREAT | os.O_EXCL)
    os.fsync(file.file)
    ask(f"post {a.seed}.synced.{who} 0")
    while True:
        step = held.plan()
        file.do(*step)
        held.apply(*step)
        if step[0] in SYNCING:
            ask(f"post {a.seed}.synced.{who} {held.step}")


def survived(a, who):
    """What the client that is gone left: all that it had synced, and of what came after it any part."""
    folder = a.folders[who % len(a.folders)]
    held = Held(a.seed, who, os.path.basename(folder), a.vers, RENAMING)
    file = File(folder, held)
    synced = int(ask(f"await {a.seed}.synced.{who}"))
    while held.step < synced:
        held.apply(*held.plan())
    file.open()
    found = file.read("read_direct", 0, held.most)
    wrong = {at for first in range(0, len(found), PAGE) if found[first:first + PAGE] != held.data[first:first + PAGE]
             for at in range(first, min(first + PAGE, len(found))) if found[at:at + 1] != held.data[at:at + 1]}
    shortest = longest = len(held.data)
    # The last word may have been lost with its client: up to the second sync from there.
    syncs, steps = 0, []
    while syncs < 2:
        step = held.plan()
        steps.append(step)
        held.apply(*step)
        syncs += step[0] in SYNCING
        shortest, longest = min(shortest, len(held.data)), max(longest, len(held.data))
        wrong = {at for at in wrong if found[at:at + 1] != held.data[at:at + 1]}
    # A file that was made longer and not written yet.
    wrong = sorted(at for at in wrong if found[at] or at < shortest)
    if wrong or not shortest <= len(found) <= longest:
        print(f"FAIL seed {a.seed}: {file.path()} was synced at step {synced} ({synced:#x}), then {steps}: it is {len(found)} bytes long, "
              f"of {shortest} to {longest}; {len(wrong)} bytes are neither, from {wrong[:1]} on: {found[wrong[0]:][:64] if wrong else ''}",
              flush=True)
        return 1
    if found != file.read("read", 0, held.most) or found != file.read("read_direct", 0, held.most):
        print(f"FAIL seed {a.seed}: {file.path()} reads in two ways", flush=True)
        return 1
    print(f"  {file.path()}: synced at step {synced}, {len(found)} bytes", flush=True)
    return 0


RECORD, RECORDS = 5003, 24


def record(number, version):
    """Text, or nothing yet."""
    return (f"{number:03}.{version:07}|".encode() * (RECORD // 12 + 1))[:RECORD] if version else bytes(RECORD)


def records(a, who, writers):
    """Records of one file, side by side, under byte-range locks: one's own are as one left them, others' never older than seen."""
    path, seen, choice = f"{a.folders[a.seed % len(a.folders)]}/records", [0] * RECORDS, random.Random(a.seed * 77 + who)
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    number = None

    def check(number, last):
        at = number * RECORD
        found = os.pread(file, RECORD, at).ljust(RECORD, b"\0")
        version = int(found[4:11]) if found[4:11].isdigit() else 0
        if found != record(number, version):
            first = next(n for n, (x, y) in enumerate(zip(found, record(number, version))) if x != y)
            raise Wrong(f"bytes {at + first} and more are wrong: found {found[first:first + 36]}, of {found[:12]}")
        if version < seen[number] or (number % writers == who or last) and version != seen[number]:
            raise Wrong(f"version {version} is there, wanted {seen[number]}")
        seen[number] = version

    try:
        while time.monotonic() < a.until:
            number = choice.randrange(RECORDS)
            mine = number % writers == who
            fcntl.lockf(file, fcntl.LOCK_EX if mine else fcntl.LOCK_SH, RECORD, number * RECORD)
            check(number, False)
            if mine:
                seen[number] += 1
                done = os.pwrite(file, record(number, seen[number]), number * RECORD)
                if done != RECORD:
                    raise Wrong(f"{done} bytes were written")
                if choice.random() < .2:
                    os.fsync(file)
                check(number, False)
            fcntl.lockf(file, fcntl.LOCK_UN, RECORD, number * RECORD)
        os.fsync(file)
        ask(f"post {a.seed}.records.{who} {' '.join(map(str, seen))}")
        for other in range(writers):
            told = ask(f"await {a.seed}.records.{other}").split()
            for number in range(other, RECORDS, writers):
                seen[number] = int(told[number])
        for number in range(RECORDS):
            fcntl.lockf(file, fcntl.LOCK_SH, RECORD, number * RECORD)
            check(number, True)
            fcntl.lockf(file, fcntl.LOCK_UN, RECORD, number * RECORD)
    except (Wrong, OSError, RuntimeError) as error:
        if "case has ended" not in str(error):
            print(f"FAIL seed {a.seed}: record {number} of {path} for {who}: {error!r}", flush=True)
        return 1
    print(f"  records of {who}: {sum(seen[who::writers])} writes", flush=True)
    return 0


def trouble(a):
    """Things happen to the servers, one after the other."""
    choice, kinds = random.Random(a.seed * 13), a.trouble.split(",")
    servers = range(1, int(os.environ["DATA_SERVERS"]) + 1)
    drained = None

    def command(words):
        # While the metadata server is away, or since another one says so: a drain that would leave too few, for example.
        try:
            ask(f"sluice {words}")
        except RuntimeError as error:
            print(f"  ({str(error).strip()[-150:]})", flush=True)

    while time.monotonic() < a.until:
        time.sleep(choice.uniform(.5, 3))
        kind, server, pause = choice.choice(kinds), choice.choice(servers), choice.uniform(1, 8)
        print(f"  [{time.monotonic() - a.began:.1f}] {kind} {server if 'mds' not in kind else ''}", flush=True)
        if kind == "kill-mds":
            ask("kill mds")
        elif kind == "kill-ds":
            ask(f"kill ds{server}")
        elif kind == "kill-both":
            ask(f"kill ds{server}")
            ask("kill mds")
        elif kind == "lose-ds":
            ask(f"lose ds{server}")
            time.sleep(pause)
            ask("regain")
        elif kind == "mute-ds":
            ask(f"mute ds{server}")
            time.sleep(pause)
            ask(f"unmute ds{server}")
        elif kind == "mute-mds":
            ask("mute mds")
            time.sleep(pause / 2)
            ask("unmute mds")
        elif kind == "cut-ds":
            ask(f"cut {server + 1}")
            time.sleep(pause)
            ask(f"mend {server + 1}")
        elif kind == "renew-mds":
            ask("renew mds")
        elif kind == "drain":
            if drained:
                command(f"ds undrain {drained}")
            drained = server
            command(f"ds drain {server} --no-wait")
        elif kind == "balance":
            command("ds balance --to 1 --no-wait")
        elif kind == "rotate":
            command("key rotate --no-wait")
        elif kind == "recall":
            folder = choice.choice(a.folders)
            for name in os.listdir(folder):
                command(f"layout recall {folder.removeprefix(a.mount)}/{name}")
        elif kind == "drop":
            with open("/proc/sys/vm/drop_caches", "w") as file:
                file.write("3")
    if drained:
        command(f"ds undrain {drained}")
    return 0


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("mount")
    parser.add_argument("folders", nargs="+", help="which are called after what is in them")
    parser.add_argument("--role", type=int, required=True)
    parser.add_argument("--guests", type=int, default=2)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--how", choices=("passed", "alone", "survived"), default="passed")
    parser.add_argument("--files", type=int, default=14)
    parser.add_argument("--lockers", type=int, default=2, help="of each client")
    parser.add_argument("--vers", default="4.2")
    parser.add_argument("--trouble", default="")
    a = parser.parse_args()
    a.began = time.monotonic()
    a.until = a.began + a.seconds
    writers = a.lockers * a.guests
    jobs = [({"passed": work, "alone": alone, "survived": survived}[a.how], a, who) for who in range(a.files)]
    if a.how == "passed":
        jobs += [(records, a, locker * a.guests + a.role - 1, writers) for locker in range(a.lockers)]
    if a.trouble and a.role == 1:
        jobs.append((trouble, a))
    children = set()
    for job, *arguments in jobs:
        child = os.fork()
        if child == 0:
            status = 1
            try:
                status = job(*arguments)
            finally:
                sys.stdout.flush()
                os._exit(status)
        children.add(child)
    # Nobody waits for the turn of one that has failed.
    while children:
        child, status = os.wait()
        children.discard(child)
        if status:
            for child in children:
                os.kill(child, signal.SIGKILL)
            sys.exit(f"seed {a.seed}: a process ended with an error")


main()
