"""Random operations on small files, each checked against what the file must hold; every file dies young.

fsx cannot do this: it begins by making its file long, which a file that is kept in the metadata outlives only at a data
server.
"""
import argparse, mmap, os, random, sys

PAGE = 4096


class File:
    """One file, and what it must hold."""

    def __init__(self, path, choice, limit):
        self.path, self.choice = path, choice
        # Most files stay below the limit, some end at it, some grow out of it in small steps and large.
        self.most = choice.choice([limit // 4, limit - 1, limit, limit, limit + 1, 3 * limit])
        self.held = bytearray()
        self.file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)

    def range(self):
        start = self.choice.randrange(self.most)
        return start, self.choice.randint(1, min(self.most - start, self.choice.choice([10, 1000, self.most])))

    def put(self, start, data):
        if len(self.held) < start:
            self.held.extend(bytes(start - len(self.held)))
        self.held[start:start + len(data)] = data

    def write(self):
        start, length = self.range()
        data = self.choice.randbytes(length)
        done = os.pwrite(self.file, data, start)
        assert done == length, f"{done} bytes of {length} were written"
        self.put(start, data)

    def append(self):
        room = self.most - len(self.held)
        if room > 0:
            data = self.choice.randbytes(self.choice.randint(1, min(room, 3000)))
            file = os.open(self.path, os.O_WRONLY | os.O_APPEND)
            os.write(file, data)
            os.close(file)
            self.held += data

    def store(self):
        """Through a mapping."""
        if self.held:
            start = self.choice.randrange(len(self.held))
            data = self.choice.randbytes(self.choice.randint(1, len(self.held) - start))
            with mmap.mmap(self.file, len(self.held)) as view:
                view[start:start + len(data)] = data
            self.held[start:start + len(data)] = data

    def direct(self):
        """Around the page cache, whole pages."""
        if self.most >= PAGE:
            start = PAGE * self.choice.randrange(self.most // PAGE)
            data = self.choice.randbytes(PAGE)
            with mmap.mmap(-1, PAGE) as page:
                page[:] = data
                file = os.open(self.path, os.O_WRONLY | os.O_DIRECT)
                os.pwritev(file, [page], start)
                os.close(file)
            self.put(start, data)

    def cut(self):
        size = self.choice.randint(0, self.most)
        os.ftruncate(self.file, size)
        del self.held[size:]
        self.held.extend(bytes(size - len(self.held)))

    def copy(self):
        """To a file of its own, which takes this one's place."""
        other = self.path + ".copy"
        file = os.open(other, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
        done = 0
        while done < len(self.held):
            more = os.copy_file_range(self.file, file, len(self.held) - done, done, done)
            assert more, f"a copy ended at {done} of {len(self.held)}"
            done += more
        os.close(self.file)
        self.file = file
        os.rename(other, self.path)

    def sync(self):
        os.fsync(self.file)

    def reopen(self):
        os.close(self.file)
        self.file = os.open(self.path, os.O_RDWR)

    def forget(self):
        """What comes next is read from a server."""
        os.fsync(self.file)
        os.posix_fadvise(self.file, 0, 0, os.POSIX_FADV_DONTNEED)

    def check(self, what):
        size = os.fstat(self.file).st_size
        assert size == len(self.held), f"{what}: {size} bytes long, wanted {len(self.held)}"
        found = os.pread(self.file, len(self.held) + 100, 0)
        if found != self.held:
            at = next((n for n, (a, b) in enumerate(zip(found, self.held)) if a != b), min(len(found), len(self.held)))
            raise AssertionError(f"{what}: {len(found)} bytes, wrong from {at} on: found {found[at:at + 8].hex()},"
                                 f" wanted {self.held[at:at + 8].hex()}")


STEPS = (File.write, File.write, File.write, File.append, File.append, File.store, File.direct, File.cut, File.copy,
         File.sync, File.reopen, File.forget)


def live(path, seed, limit):
    choice = random.Random(seed)
    file = File(path, choice, limit)
    done = []
    for _ in range(choice.randint(5, 60)):
        step = choice.choice(STEPS)
        done.append(f"{step.__name__}")
        try:
            step(file)
            file.check(step.__name__)
        except (AssertionError, OSError) as error:
            print(f"FAIL seed {seed}, at most {file.most} bytes, after {' '.join(done)}: {error}", flush=True)
            sys.exit(1)
    os.close(file.file)
    return file


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("directory")
    parser.add_argument("--seed", type=int, required=True, help="of the first file")
    parser.add_argument("--files", type=int, required=True)
    parser.add_argument("--limit", type=int, default=16384)
    a = parser.parse_args()
    os.mkdir(a.directory)
    for seed in range(a.seed, a.seed + a.files):
        path = f"{a.directory}/{seed}"
        held = live(path, seed, a.limit).held
        with open(path, "rb") as file:
            if file.read() != held:
                print(f"FAIL seed {seed}: other bytes after the last close", flush=True)
                sys.exit(1)
        os.unlink(path)
    os.rmdir(a.directory)


main()
