"""System calls that shell commands do not reach; run in an empty directory, with the minor version as argument."""
import ctypes, errno, fcntl, mmap, os, sys, threading, time
v42 = sys.argv[1] == "4.2"

last = time.monotonic()

def check(condition, what):
    global last
    if not condition:
        print("FAIL", what); sys.exit(1)
    if time.monotonic() - last > 2:
        print(f"  slow: {time.monotonic() - last:.1f} s until: {what}", flush=True)
    last = time.monotonic()

def step(what):
    print(f"  [{time.clock_gettime(time.CLOCK_BOOTTIME):.2f}] {what}", flush=True)

def fails(number, call, *arguments):
    try: call(*arguments)
    except OSError as error:
        check(error.errno == number, f"{call.__name__}{arguments[1:]}: {error}"); return
    check(False, f"{call.__name__}{arguments[1:]} succeeded")

step("extended attributes")
open("attributed", "w").close()
if v42:
    os.setxattr("attributed", "user.colour", b"blue")
    os.setxattr("attributed", "user.big", b"v" * 2000)
    check(os.getxattr("attributed", "user.colour") == b"blue", "xattr value")
    listed = sorted(name for name in os.listxattr("attributed") if name.startswith("user."))
    check(listed == ["user.big", "user.colour"], f"xattr list {listed}")
    fails(errno.EEXIST, os.setxattr, "attributed", "user.colour", b"", os.XATTR_CREATE)
    os.setxattr("attributed", "user.colour", b"", os.XATTR_REPLACE)
    check(os.getxattr("attributed", "user.colour") == b"", "empty xattr")
    os.removexattr("attributed", "user.colour")
    fails(errno.ENODATA, os.getxattr, "attributed", "user.colour")

# Two owners need two processes (fcntl) or two descriptions (flock).
step("locks")
def in_child(work):
    child = os.fork()
    if child == 0:
        try: work(); os._exit(0)
        except OSError as error: os._exit(error.errno)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

with open("locked", "w+b") as file:
    file.write(b"x" * 100); file.flush()
    def attempt(kind, start, length):
        def work():
            with open("locked", "r+b") as other:
                fcntl.lockf(other, kind | fcntl.LOCK_NB, length, start)
        return in_child(work)
    fcntl.lockf(file, fcntl.LOCK_EX, 10, 20)
    check(attempt(fcntl.LOCK_EX, 25, 1) in (errno.EAGAIN, errno.EACCES), "a conflicting byte-range lock")
    check(attempt(fcntl.LOCK_EX, 30, 5) == 0, "the byte after a lock")
    check(attempt(fcntl.LOCK_EX, 0, 20) == 0, "the bytes before a lock")
    fcntl.lockf(file, fcntl.LOCK_UN, 4, 23)                       # splits the range
    check(attempt(fcntl.LOCK_EX, 23, 4) == 0, "the hole in a split lock")
    check(attempt(fcntl.LOCK_SH, 22, 1) != 0 and attempt(fcntl.LOCK_SH, 27, 1) != 0, "both ends of a split lock")
    fcntl.lockf(file, fcntl.LOCK_UN)
    fcntl.lockf(file, fcntl.LOCK_SH, 0, 0)
    check(attempt(fcntl.LOCK_SH, 5, 5) == 0 and attempt(fcntl.LOCK_EX, 5, 5) != 0, "shared locks")
    fcntl.lockf(file, fcntl.LOCK_UN)
    fcntl.flock(file, fcntl.LOCK_EX)
    def flock():
        with open("locked", "r+b") as other: fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    check(in_child(flock) == errno.EAGAIN, "a conflicting flock")
    fcntl.flock(file, fcntl.LOCK_UN)
    check(in_child(flock) == 0, "flock after unlock")
    # a blocked lock is granted when the holder lets go
    fcntl.lockf(file, fcntl.LOCK_EX, 1, 0)
    child = os.fork()
    if child == 0:
        with open("locked", "r+b") as other: fcntl.lockf(other, fcntl.LOCK_EX, 1, 0)
        os._exit(0)
    threading.Event().wait(0.3); fcntl.lockf(file, fcntl.LOCK_UN, 1, 0)
    check(os.waitpid(child, 0)[1] == 0, "a blocking lock")

step("shared mapping")
with open("mapped", "w+b") as file:
    file.truncate(3 * 4096 + 100)
    view = mmap.mmap(file.fileno(), 0)
    view[4000:4200] = b"m" * 200; view[-1] = 7; view.flush(); view.close()
    check(os.pread(file.fileno(), 200, 4000) == b"m" * 200, "mmap seen by read")
with open("mapped", "rb") as file:
    data = file.read()
    check(len(data) == 3 * 4096 + 100 and data[-1] == 7 and data.count(b"m") == 200, "mmap after reopening")

step("direct I/O, aligned and not")
buffer = mmap.mmap(-1, 65536); buffer[:] = bytes(range(256)) * 256
file = os.open("direct", os.O_RDWR | os.O_CREAT | os.O_DIRECT)
check(os.pwritev(file, [buffer], 4096) == 65536, "O_DIRECT write")
check(os.pwrite(file, b"odd", 70001) == 3, "unaligned O_DIRECT write")
into = mmap.mmap(-1, 131072)
check(os.preadv(file, [into], 0) == 70004, "O_DIRECT read to the end")
check(into[4096:69632] == buffer[:] and into[70001:70004] == b"odd" and not any(into[:4096]), "O_DIRECT content")
os.close(file)

step("appends of two processes")
for _ in range(4):
    if os.fork() == 0:
        file = os.open("appended", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        for _ in range(100): os.write(file, b"0123456789abcdef")
        os._exit(0)
for _ in range(4): os.wait()
data = open("appended", "rb").read()
check(data == b"0123456789abcdef" * 400, "O_APPEND")

step("an open file without a name")
file = os.open("unlinked", os.O_RDWR | os.O_CREAT); os.write(file, b"still here"); os.unlink("unlinked")
check(not os.path.exists("unlinked"), "unlink")
os.fsync(file); os.pwrite(file, b"S", 0)
check(os.pread(file, 100, 0) == b"Still here" and os.fstat(file).st_size == 10, "an open file without a name")
os.close(file)
# The reference server makes its clients keep such files under another name.
if not os.environ.get("REFERENCE"):
    check(not [name for name in os.listdir(".") if name.startswith(".nfs")], "left-over .nfs files")
first = os.open("over", os.O_RDWR | os.O_CREAT); os.write(first, b"old"); open("over.new", "w").write("new")
os.fsync(first); os.rename("over.new", "over")
check(os.pread(first, 9, 0) == b"old" and open("over").read() == "new", "an open file renamed over")
os.close(first)

step("exclusive creation, directory handles, O_TRUNC")
os.close(os.open("exclusive", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
fails(errno.EEXIST, os.open, "exclusive", os.O_CREAT | os.O_EXCL | os.O_WRONLY)
check(os.stat("exclusive").st_mode & 0o7777 == 0o600, "mode of an exclusively created file")
open("truncated", "w").write("long content"); open("truncated", "w").write("x")
check(open("truncated").read() == "x", "O_TRUNC")
read_only = os.open("readonly", os.O_CREAT | os.O_WRONLY, 0o444); os.write(read_only, b"written through"); os.close(read_only)
check(open("readonly").read() == "written through", "writes to a file created read-only")

step("holes")
libc = ctypes.CDLL(None, use_errno=True)
libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
def fallocate(file, mode, offset, length):
    if libc.fallocate(file, mode, offset, length): raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
file = os.open("sparse", os.O_RDWR | os.O_CREAT)
os.pwrite(file, b"d" * 65536, 1 << 20); os.ftruncate(file, 4 << 20); os.fsync(file)
if v42:
    check(os.lseek(file, 0, os.SEEK_HOLE) == 0, "SEEK_HOLE at 0")
    data = os.lseek(file, 0, os.SEEK_DATA)
    check(0 < data <= 1 << 20, f"SEEK_DATA at 0 gives {data}")
    hole = os.lseek(file, 1 << 20, os.SEEK_HOLE)
    check((1 << 20) + 65536 <= hole < 4 << 20, f"SEEK_HOLE after the data gives {hole}")
    fails(errno.ENXIO, os.lseek, file, 3 << 20, os.SEEK_DATA)
    fails(errno.ENXIO, os.lseek, file, 5 << 20, os.SEEK_HOLE)
    fallocate(file, 0, 4 << 20, 1 << 20)
    check(os.fstat(file).st_size == 5 << 20, "fallocate grows")
    fallocate(file, 3, 1 << 20, 32768)
    check(os.pread(file, 65536, 1 << 20) == b"\0" * 32768 + b"d" * 32768, "a punched hole reads as zeros")
os.close(file)
