"""Reads and writes of the guest cases.

A pattern's byte at an offset depends on its seed and offset alone, so that any part of a file can be checked without
having kept it: each 4 KiB block is a header (seed, block number) and a slice of one random buffer.
"""
import argparse, errno, fcntl, mmap, os, random, struct, sys, time

BLOCK = 4096
UNITS = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
bases = {}


def size(text):
    text = text.lower()
    return int(text[:-1]) * UNITS[text[-1]] if text[-1] in UNITS else int(text)


def blocks(seed, first, count):
    """Blocks first .. first + count of a pattern."""
    if seed not in bases:
        bases[seed] = random.Random(seed).randbytes(1 << 20)
    base = bases[seed]
    span = len(base) - BLOCK
    parts = []
    for number in range(first, first + count):
        at = number * 2654435761 % span
        parts.append(struct.pack("<QQ", seed, number))
        parts.append(base[at:at + BLOCK - 16])
    return b"".join(parts)


def pattern(seed, offset, length):
    """Any range of a pattern."""
    first = offset // BLOCK
    data = blocks(seed, first, (offset + length + BLOCK - 1) // BLOCK - first)
    return data[offset - first * BLOCK:][:length]


def die(*words):
    print("FAIL", *words, flush=True)
    sys.exit(1)


def aligned(length):
    """Page-aligned memory, as O_DIRECT wants it."""
    return mmap.mmap(-1, max(length, BLOCK))


def differs(seed, offset, got, what):
    want = pattern(seed, offset, len(got))
    if got != want:
        at = next(i for i, (a, b) in enumerate(zip(got, want)) if a != b)
        header = struct.unpack_from("<QQ", got, at - at % BLOCK) if len(got) >= at - at % BLOCK + 16 else ()
        die(f"{what}: wrong byte at {offset + at}: found {got[at:at + 8].hex()}, wanted {want[at:at + 8].hex()};"
            f" the block says (seed, number) {header}; all zero: {not any(got[at:at + BLOCK])}")


def write(a):
    flags = os.O_WRONLY | os.O_CREAT | (os.O_DIRECT if a.direct else 0) | (os.O_TRUNC if a.trunc else 0)
    file = os.open(a.path, flags, 0o644)
    start, end, step = a.offset, a.offset + a.size, a.block
    buffer = aligned(step)
    while start < end:
        length = min(step, end - start)
        buffer[:length] = pattern(a.seed, start, length)
        done = os.pwritev(file, [memoryview(buffer)[:length]], start)
        if done != length:
            die(f"{a.path}: wrote {done} of {length} at {start}")
        start += length
    if a.sync:
        os.fsync(file)
    os.close(file)


def verify(a):
    file = os.open(a.path, os.O_RDONLY | (os.O_DIRECT if a.direct else 0))
    if a.exact and os.fstat(file).st_size != a.offset + a.size:
        die(f"{a.path}: size is {os.fstat(file).st_size}, wanted {a.offset + a.size}")
    start, end, step = a.offset, a.offset + a.size, a.block
    buffer = aligned(step)
    while start < end:
        length = min(step, end - start)
        done = os.preadv(file, [memoryview(buffer)[:length]], start)
        if done != length:
            die(f"{a.path}: read {done} of {length} at {start}")
        differs(a.seed, start, buffer[:length], a.path)
        start += length
    os.close(file)


def sparse(a):
    """Checks a file against a map: '4096:8192=7' is seed 7 in [4096, 8192), the rest up to the size is zero."""
    image = bytearray(a.size)
    for part in a.parts:
        span, seed = part.split("=")
        first, last = map(size, span.split(":"))
        image[first:last] = pattern(int(seed), first, last - first)
    file = os.open(a.path, os.O_RDONLY | (os.O_DIRECT if a.direct else 0))
    found = os.fstat(file).st_size
    if found != a.size:
        die(f"{a.path}: size is {found}, wanted {a.size}")
    for step in a.steps:
        buffer = aligned(step)
        for start in range(0, a.size + step, step):
            want = bytes(image[start:start + step])
            got = os.preadv(file, [memoryview(buffer)[:step]], start)
            if got != len(want):
                die(f"{a.path}: a read of {step} at {start} gave {got}, wanted {len(want)} (direct={a.direct})")
            if buffer[:got] != want:
                at = next(i for i in range(got) if buffer[i] != want[i])
                die(f"{a.path}: wrong byte at {start + at} in a read of {step} (direct={a.direct})")
    os.close(file)


def random_mmap(a):
    """Checks single pages, at random, through a shared mapping."""
    file = os.open(a.path, os.O_RDONLY)
    view = mmap.mmap(file, a.size, mmap.MAP_SHARED, mmap.PROT_READ)
    view.madvise(mmap.MADV_RANDOM)
    choice = random.Random(a.seed)
    for _ in range(a.count):
        number = choice.randrange(a.size // BLOCK)
        differs(a.seed, number * BLOCK, view[number * BLOCK:(number + 1) * BLOCK], a.path)


def record(number, length, writer):
    """One record of an N-to-1 file: self-describing, so that any mixture is found."""
    head = struct.pack("<QQ", number, writer)
    return head + bytes([(number * 31 + writer * 7 + 1) % 251]) * (length - 16)


def records(a):
    """Writer `writer` of `writers`: every writers-th record of the file; with --log, what is synced is noted."""
    file = os.open(a.path, os.O_WRONLY | os.O_CREAT, 0o644)
    for number in range(a.writer, a.count, a.writers):
        if a.lock:
            fcntl.lockf(file, fcntl.LOCK_EX, a.length, number * a.length)
        data = record(number, a.length, a.writer)
        if os.pwrite(file, data, number * a.length) != len(data):
            die(f"{a.path}: short write of record {number}")
        if a.lock:
            fcntl.lockf(file, fcntl.LOCK_UN, a.length, number * a.length)
        if a.pause:
            time.sleep(a.pause)
    os.fsync(file)
    os.close(file)


def check_records(a):
    """Records of the writers in --whole must all be right; those of others right or absent (zero or torn)."""
    file = os.open(a.path, os.O_RDONLY)
    whole = set(map(int, a.whole.split(",")))
    wrong = absent = 0
    for number in range(a.count):
        writer = number % a.writers
        got = os.pread(file, a.length, number * a.length)
        if got == record(number, a.length, writer):
            continue
        if writer in whole:
            die(f"{a.path}: record {number} of writer {writer} is wrong: {got[:24].hex()} ({len(got)} bytes)")
        absent += 1
        body = record(number, a.length, writer)
        # What there is of a dead writer's record is either its own bytes or a hole.
        if any(g and g != b for g, b in zip(got, body)):
            wrong += 1
    if wrong:
        die(f"{a.path}: {wrong} records hold bytes that nobody wrote")
    print(f"records: {a.count - absent} whole, {absent} of the dead writer absent or torn")


def journal(a):
    """Appends records, each synced before its number goes to --log (on another file system): what must survive."""
    file = os.open(a.path, os.O_WRONLY | os.O_CREAT, 0o644)
    end = time.monotonic() + a.seconds
    number = 0
    worst = 0.0
    with open(a.log, "w") as log:
        while time.monotonic() < end:
            before = time.monotonic()
            data = record(number, a.length, 1)
            if os.pwrite(file, data, number * a.length) != len(data):
                die(f"{a.path}: short write of record {number}")
            (os.fsync if number % 2 else os.fdatasync)(file)
            worst = max(worst, time.monotonic() - before)
            log.write(f"{number}\n")
            log.flush()
            number += 1
    print(f"{a.path}: {number} records synced, the slowest took {worst:.1f} s", flush=True)
    note(a.stalls, worst)


def note(path, seconds):
    if path:
        with open(path, "w") as stalls:
            stalls.write(f"{seconds:.1f}\n")


def reread(a):
    """Reads f1 .. fN of a folder (`write`, 1 MiB, seed N) past the cache, again and again; how long the slowest took."""
    end = time.monotonic() + a.seconds
    buffer, worst, number = aligned(1 << 20), 0.0, 0
    while time.monotonic() < end:
        seed = number % a.count + 1
        before = time.monotonic()
        file = os.open(f"{a.path}/f{seed}", os.O_RDONLY | os.O_DIRECT)
        done = os.preadv(file, [buffer], 0)
        os.close(file)
        worst = max(worst, time.monotonic() - before)
        if done != len(buffer):
            die(f"{a.path}/f{seed}: read {done}")
        differs(seed, 0, buffer[:done], f"{a.path}/f{seed}")
        number += 1
        time.sleep(0.05)
    print(f"{a.path}: {number} files read, the slowest took {worst:.1f} s", flush=True)
    note(a.stalls, worst)


def names(a):
    """Makes, renames, links, reads, lists and removes, each time as it must be."""
    os.mkdir(a.path)
    end, worst, number = time.monotonic() + a.seconds, 0.0, 0
    while time.monotonic() < end:
        before = time.monotonic()
        folder = f"{a.path}/{number}"
        os.mkdir(folder)
        with open(f"{folder}/f", "x") as file:
            file.write(str(number))
        os.rename(f"{folder}/f", f"{folder}/g")
        os.link(f"{folder}/g", f"{folder}/h")
        os.unlink(f"{folder}/g")
        if os.listdir(folder) != ["h"]:
            die(f"{folder}: {os.listdir(folder)}")
        worst = max(worst, time.monotonic() - before)
        number += 1
        time.sleep(0.05)
    for each in range(number):
        with open(f"{a.path}/{each}/h") as file:
            if file.read() != str(each):
                die(f"{a.path}/{each}/h is not what was written")
    if number < 20:
        die(f"{a.path}: {number} rounds only")
    print(f"{a.path}: {number} rounds of names, the slowest took {worst:.1f} s", flush=True)


def check_journal(a):
    with open(a.log) as log:
        count = len(log.read().split())
    file = os.open(a.path, os.O_RDONLY)
    for number in range(count):
        if os.pread(file, a.length, number * a.length) != record(number, a.length, 1):
            die(f"{a.path}: record {number} of {count} was synced and is lost")
    print(f"{a.path}: all {count} synced records are there")


def expect_error(a):
    """Reads or writes once; succeeds if the error is the wanted one, and says how long it took."""
    before = time.monotonic()
    try:
        file = os.open(a.path, os.O_RDWR)
        if a.write:
            os.pwrite(file, b"x" * 65536, a.offset)
            os.fsync(file)
        else:
            os.pread(file, 65536, a.offset)
    except OSError as error:
        took = time.monotonic() - before
        if error.errno != getattr(errno, a.error):
            die(f"{a.path}: {error.strerror} after {took:.1f} s, wanted {a.error}")
        print(f"{took:.1f}")
        os._exit(0)
    die(f"{a.path}: no error after {time.monotonic() - before:.1f} s, wanted {a.error}")


def main():
    parser = argparse.ArgumentParser()
    commands = parser.add_subparsers(required=True)

    def command(function, name=None):
        made = commands.add_parser(name or function.__name__)
        made.set_defaults(function=function)
        made.add_argument("path")
        return made

    for function in (write, verify):
        made = command(function)
        made.add_argument("size", type=size)
        made.add_argument("seed", type=int)
        made.add_argument("--direct", action="store_true")
        made.add_argument("--block", type=size, default=1 << 20)
        made.add_argument("--offset", type=size, default=0)
        if function is write:
            made.add_argument("--trunc", action="store_true")
            made.add_argument("--sync", action="store_true")
        else:
            made.add_argument("--exact", action="store_true")
    made = command(sparse)
    made.add_argument("size", type=size)
    made.add_argument("parts", nargs="*")
    made.add_argument("--direct", action="store_true")
    made.add_argument("--steps", type=lambda text: [size(part) for part in text.split(",")], default=[4096, 1 << 20])
    made = command(random_mmap, "mmap")
    made.add_argument("size", type=size)
    made.add_argument("seed", type=int)
    made.add_argument("count", type=int)
    for function, name in ((records, "records"), (check_records, "check-records")):
        made = command(function, name)
        made.add_argument("--writers", type=int, required=True)
        made.add_argument("--count", type=int, required=True)
        made.add_argument("--length", type=int, default=47008)
        if function is records:
            made.add_argument("--writer", type=int, required=True)
            made.add_argument("--lock", action="store_true")
            made.add_argument("--pause", type=float, default=0)
        else:
            made.add_argument("--whole", required=True)
    for function, name in ((journal, "journal"), (check_journal, "check-journal")):
        made = command(function, name)
        made.add_argument("log")
        made.add_argument("--length", type=int, default=16384)
        made.add_argument("--seconds", type=float, default=10)
        made.add_argument("--stalls")
    made = command(names)
    made.add_argument("--seconds", type=float, required=True)
    made = command(reread)
    made.add_argument("--count", type=int, required=True)
    made.add_argument("--seconds", type=float, required=True)
    made.add_argument("--stalls")
    made = command(expect_error, "expect-error")
    made.add_argument("error")
    made.add_argument("--write", action="store_true")
    made.add_argument("--offset", type=size, default=0)
    arguments = parser.parse_args()
    arguments.function(arguments)


if __name__ == "__main__":
    main()
