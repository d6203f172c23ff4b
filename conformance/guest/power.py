"""Load and checker of the power-loss cases.

`load DIR LOG` runs until the file STOP appears; every acknowledged step is a line in LOG, written after the system
call that promises it returned. `check DIR LOG` verifies that every promise in LOG is kept. What was asked but not
acknowledged may or may not have happened. Workers are processes, each with a folder and a log of its own.
"""
import mmap, os, random, struct, sys, time
from errno import EEXIST, ENOENT

BLOCK = 4096


def die(*words):
    print("FAIL", *words, flush=True)
    sys.exit(1)


class Log:
    """One line per promise. Synced when it must outlive this machine."""

    def __init__(self, path, durable):
        self.file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self.durable = durable
        self.last, self.slowest = time.monotonic(), (0.0, "")

    def say(self, *words):
        now = time.monotonic()
        self.slowest = max(self.slowest, (now - self.last, str(words[0])))
        self.last = now
        os.write(self.file, (" ".join(map(str, words)) + "\n").encode())
        if self.durable:
            os.fdatasync(self.file)


def block(kind, slot, number, version):
    """4 KiB that tell what they are."""
    head = struct.pack("<QQQQ", kind, slot, number, version)
    return (head + bytes([(slot * 31 + number * 7 + version * 3 + 1) % 251])* 32) * (BLOCK // 64)


def extent(kind, slot, version, blocks):
    return b"".join(block(kind, slot, number, version) for number in range(blocks))


def aligned(data):
    """The same at the beginning of a page: a write past the page cache is one WRITE then."""
    memory = mmap.mmap(-1, len(data))
    memory.write(data)
    return memory


def write_all(file, data, offset):
    while data:
        done = os.pwrite(file, data, offset)
        data, offset = data[done:], offset + done


def synced(path):
    """Pushes a file out under a descriptor of its own."""
    file = os.open(path, os.O_WRONLY)
    os.fsync(file)
    os.close(file)


# Every worker: load(folder, log, go) and check(folder, lines) -> (promises kept, list of what is broken).

class Append:
    """Records at the end of a file: the size must survive as well as the bytes."""
    blocks = 4

    def load(self, folder, log, go):
        number = 0
        file = os.open(f"{folder}/file", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        while go():
            write_all(file, extent(1, number, 0, self.blocks), number * self.blocks * BLOCK)
            (os.fsync if number % 2 else os.fdatasync)(file)
            log.say(number)
            number += 1
        os.close(file)

    def check(self, folder, lines):
        broken = []
        if not lines:
            return 0, broken
        try:
            file = os.open(f"{folder}/file", os.O_RDONLY)
        except OSError as error:
            return 0, [f"the file of {len(lines)} synced records: {error.strerror}"]
        for (number,) in lines:
            number = int(number)
            got = os.pread(file, self.blocks * BLOCK, number * self.blocks * BLOCK)
            if got != extent(1, number, 0, self.blocks):
                broken.append(f"record {number}: {len(got)} bytes, {got[:32].hex()}")
        os.close(file)
        return len(lines) - len(broken), broken


class Overwrite:
    """Slots written again and again in place: the version found is at least the one acknowledged."""

    def __init__(self, kind, slots, blocks, flags=0):
        self.kind, self.slots, self.blocks, self.flags = kind, slots, blocks, flags

    def load(self, folder, log, go):
        file = os.open(f"{folder}/file", os.O_WRONLY | os.O_CREAT | os.O_EXCL | self.flags, 0o644)
        versions = [0] * self.slots
        choice = random.Random(self.kind)
        while go():
            # A few slots per sync: most of them wait as UNSTABLE writes in the servers' memory.
            for slot in choice.sample(range(self.slots), min(3, self.slots)):
                versions[slot] += 1
                log.say("try", slot, versions[slot])
                data = extent(self.kind, slot, versions[slot], self.blocks)
                write_all(file, aligned(data) if self.flags else data, slot * self.blocks * BLOCK)
            os.fdatasync(file)
            log.say("all", *versions)
        os.close(file)

    def check(self, folder, lines):
        least, most, broken = [0] * self.slots, [0] * self.slots, []
        for line in lines:
            if line[0] == "all":
                least = list(map(int, line[1:]))
            else:
                most[int(line[1])] = int(line[2])
        if not any(least):
            return 0, broken
        try:
            file = os.open(f"{folder}/file", os.O_RDONLY)
        except OSError as error:
            return 0, [f"the file of {sum(map(bool, least))} synced slots: {error.strerror}"]
        for slot in filter(lambda slot: least[slot], range(self.slots)):
            got = os.pread(file, self.blocks * BLOCK, slot * self.blocks * BLOCK)
            for number in range(self.blocks):
                part = got[number * BLOCK:(number + 1) * BLOCK]
                found = struct.unpack_from("<QQQQ", part)[3] if len(part) == BLOCK else None
                # The attempt that was cut off may be there in part: whole blocks of the client's page size.
                if found is None or not least[slot] <= found <= most[slot] or part != block(self.kind, slot, number, found):
                    broken.append(f"slot {slot} block {number}: version {found}, acknowledged {least[slot]},"
                                  f" attempted {most[slot]}")
                    break
        os.close(file)
        return sum(map(bool, least)) - len(broken), broken


def once(what, wrong, call, done, *arguments):
    """An operation whose effect is there although it says that it cannot be: the server ran it, lost power before the
    reply, and ran it again when the client repeated it. Without that effect the error stands."""
    try:
        call(*arguments)
    except OSError as error:
        if error.errno != wrong or not done():
            raise
        print(f"TWICE {what} {arguments[-1]}: {error.strerror}, and yet it is done", flush=True)


class Names:
    """Creates, renames, links, removes, attributes: each acknowledged by its own reply."""

    def load(self, folder, log, go):
        number = 0
        while go():
            path = f"{folder}/new{number}"
            with open(path, "xb", buffering=0) as file:
                file.write(block(3, number, 0, 0))
                os.fsync(file)
            log.say("made", number)
            os.chmod(path, 0o640)
            log.say("mode", number)
            moved, made = f"{folder}/moved{number}", f"{folder}/dir{number}"
            here = os.path.lexists
            once("rename", ENOENT, os.rename, lambda: here(moved) and not here(path), path, moved)
            log.say("moved", number)
            if number % 3 == 0:
                once("mkdir", EEXIST, os.mkdir, lambda: not os.listdir(made), made)
                log.say("dir", number)
                link, symlink = f"{made}/link", f"{made}/symlink"
                once("link", EEXIST, os.link, lambda: os.path.samefile(moved, link), moved, link)
                log.say("link", number)
                once("symlink", EEXIST, os.symlink, lambda: here(symlink), f"target{number}", symlink)
                log.say("symlink", number)
            if number % 4 == 1:
                os.truncate(f"{folder}/moved{number}", 1000)
                log.say("short", number)
            if number >= 5:
                # Replaces an older one: its own name goes, the other holds the newer file.
                if number % 5 == 0:
                    log.say("try-over", number - 4)
                    older = f"{folder}/moved{number - 4}"
                    once("rename", ENOENT, os.rename, lambda: here(older) and not here(moved), moved, older)
                    log.say("over", number, number - 4)
                elif number % 5 == 2:
                    log.say("try-gone", number - 4)
                    older = f"{folder}/moved{number - 4}"
                    once("unlink", ENOENT, os.unlink, lambda: not here(older), older)
                    log.say("gone", number - 4)
            number += 1

    def check(self, folder, lines):
        broken = []
        state = {}
        extras = []
        for line in lines:
            word, number = line[0], int(line[1])
            if word == "made":
                state[number] = {"name": f"new{number}", "holds": number, "mode": 0o644, "size": BLOCK}
            elif word == "mode":
                state[number]["mode"] = 0o640
            elif word == "moved":
                state[number]["name"] = f"moved{number}"
            elif word == "short":
                state[number]["size"] = 1000
            elif word in ("dir", "link", "symlink"):
                extras.append((word, number))
            elif word in ("try-gone", "try-over"):
                state[number]["doubt"] = True
            elif word == "gone":
                state[number]["gone"] = True
            elif word == "over":
                old = state[int(line[2])]
                old["gone"], state[number]["name"] = True, old["name"]
        # The last attempt is not acknowledged: its file may be one step further.
        last = max(state, default=None)
        names = set(os.listdir(folder)) if os.path.isdir(folder) else set()
        holders = {f["name"] for f in state.values() if not f.get("gone")}
        for number, file in state.items():
            if file.get("gone"):
                if file["name"] in names and file["name"] not in holders:
                    broken.append(f"{file['name']} was removed and is back")
                for ghost in (f"new{number}", f"moved{number}"):
                    if ghost in names and ghost not in holders:
                        broken.append(f"{ghost} was removed and is back")
                continue
            if file.get("doubt"):
                continue
            # In the middle of its steps a file may be one rename ahead of what is known.
            if number == last and file["name"] not in names:
                known = self.ahead(number, file["name"], names)
                if known:
                    continue
            try:
                got = os.stat(f"{folder}/{file['name']}")
            except OSError as error:
                broken.append(f"{file['name']}: {error.strerror}")
                continue
            with open(f"{folder}/{file['name']}", "rb") as stream:
                data = stream.read()
            if number == last:
                if block(3, file["holds"], 0, 0)[:len(data)] != data or len(data) not in (1000, BLOCK):
                    broken.append(f"{file['name']}: {len(data)} bytes, {data[:32].hex()}")
                continue
            if got.st_mode & 0o777 != file["mode"] or data != block(3, file["holds"], 0, 0)[:file["size"]]:
                broken.append(f"{file['name']}: mode {got.st_mode & 0o777:o}, {len(data)} bytes, {data[:32].hex()};"
                              f" wanted mode {file['mode']:o}, {file['size']} bytes of {file['holds']}")
            if file["name"] != f"moved{number}" and f"moved{number}" in names:
                broken.append(f"moved{number} was renamed and is still there")
            if file["name"] != f"new{number}" and f"new{number}" in names:
                broken.append(f"new{number} was renamed and is still there")
        for word, number in extras:
            path = f"{folder}/dir{number}"
            try:
                if word == "dir":
                    os.listdir(path)
                elif word == "link":
                    os.stat(f"{path}/link")
                elif os.readlink(f"{path}/symlink") != f"target{number}":
                    broken.append(f"{path}/symlink points elsewhere")
            except OSError as error:
                broken.append(f"{word} {number}: {error.strerror}")
        return max(len(state) + len(extras) - len(broken), 0), broken

    @staticmethod
    def ahead(number, name, names):
        if name == f"new{number}":
            return f"moved{number}" in names
        return number >= 5 and number % 5 == 0 and f"moved{number - 4}" in names


WORKERS = {
    "append": Append(),
    "small": Overwrite(2, 64, 1),
    "large": Overwrite(4, 6, 512),
    # Single stable WRITEs of 1 MiB.
    "direct": Overwrite(5, 6, 256, os.O_DIRECT),
    "names": Names(),
}


def load(folder, log, stop, durable):
    os.makedirs(folder)
    children = {}
    for name, worker in WORKERS.items():
        os.mkdir(f"{folder}/{name}")
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                promises = Log(f"{log}.{name}", durable)
                worker.load(f"{folder}/{name}", promises, lambda: not os.path.exists(stop))
                print("%s: the slowest step (%s) took %.1f s" % (name, *promises.slowest[::-1]), flush=True)
                code = 0
            except OSError as error:
                print(f"FAIL {name}: {error}", flush=True)
            finally:
                os._exit(code)
        children[pid] = name
    failed = [children[pid] for pid, status in (os.wait() for _ in children) if status]
    if failed:
        die("an application saw an error:", *sorted(failed))


def check(folder, log):
    losses = kept = 0
    for name, worker in WORKERS.items():
        if not os.path.exists(f"{log}.{name}"):
            continue
        with open(f"{log}.{name}") as file:
            text = file.read()
        # A line without its end was being written when the machine died.
        lines = [line.split() for line in text[:text.rfind("\n") + 1].splitlines()]
        good, broken = worker.check(f"{folder}/{name}", lines)
        kept += good
        losses += len(broken)
        for line in broken[:5]:
            print(f"LOST {folder}/{name}: {line}")
        if len(broken) > 5:
            print(f"LOST {folder}/{name}: and {len(broken) - 5} more")
    print(f"{folder}: {kept} promises kept, {losses} broken", flush=True)
    sys.exit(3 if losses else 0)


if __name__ == "__main__":
    if sys.argv[1] == "load":
        load(sys.argv[2], sys.argv[3], sys.argv[4], "durable" in sys.argv[5:])
    else:
        check(sys.argv[2], sys.argv[3])
