"""Hosts with names, addresses, file systems and processes of their own, on the lab's bridge; and the commands that a
chapter of a document gives to each kind of host."""
import os, re, signal, stat, subprocess, sys, time

HOSTS = "127.0.0.1 localhost\n"
# What this machine's own Sluice has there is none of the lab's hosts' business.
HIDDEN = ["etc/sluice", "srv/sluice", "var/lib/sluice"]


def die(*words):
    print("FAIL", *words, flush=True)
    sys.exit(1)


def step(*words):
    print(f"[{time.monotonic() - BEGIN:.0f}]", *words, flush=True)


BEGIN = time.monotonic()


def sh(command):
    subprocess.run(["bash", "-ec", command], check=True)


class Host:
    """A network, a mount, a process and a name space; the tree is this machine's, under an overlay that is its disk."""

    def __init__(self, home, name, address, devices=()):
        self.name, self.address, self.home = name, address, f"{home}/{name}"
        self.devices, self.init = devices, None
        for folder in ("upper", "work", "root"):
            os.makedirs(f"{self.home}/{folder}")
        for path in HIDDEN:
            os.makedirs(os.path.dirname(f"{self.home}/upper/{path}"), exist_ok=True)
            # As an overlay says that something is not there.
            os.mknod(f"{self.home}/upper/{path}", stat.S_IFCHR, os.makedev(0, 0))
        for device in devices:
            sh(f"truncate -s 700M {self.home}/{device}; mkfs.ext4 -q -F {self.home}/{device}")

    def switch_on(self, names):
        root = f"{self.home}/root"
        # A proc of its own, and the disks, are mounted inside.
        mounts = "".join(f"mkdir -p {root}/srv/sluice/{d}; mount -o loop {self.home}/{d} {root}/srv/sluice/{d}; "
                         for d in self.devices)
        inside = (f"hostname {self.name}; "
                  f"mount -t overlay o -o lowerdir=/,upperdir={self.home}/upper,workdir={self.home}/work {root}; "
                  f"mount -t proc p {root}/proc; mount --rbind /dev {root}/dev; mount -t sysfs s {root}/sys; "
                  f"for d in run tmp; do mount -t tmpfs t {root}/$d; done; {mounts}"
                  f"touch {root}/run/up; exec chroot {root} sleep infinity")
        self.init = subprocess.Popen(["unshare", "--net", "--mount", "--uts", "--pid", "--fork", "--kill-child",
                                      "bash", "-ec", inside],
                                     stderr=open(f"{self.home}/words", "a"))
        self.wait(lambda: self.child() and os.path.exists(f"/proc/{self.child()}/root/run/up"), "it does not come up")
        link = self.name.replace("-", "")[:8]
        # The link of its former life goes with the kernel's cleaning up, a moment later.
        sh(f"while ip link show {link}p >/dev/null 2>&1; do ip link del {link}p 2>/dev/null || sleep 0.1; done; "
           f"ip link add {link}p type veth peer name eth0 netns {self.child()}; ip link set {link}p master kc0 up")
        self.run(f"ip link set lo up; ip addr add {self.address}/24 dev eth0; ip link set eth0 up")
        self.write("/etc/hosts", HOSTS + names)

    def child(self):
        """The first process inside."""
        with open(f"/proc/{self.init.pid}/task/{self.init.pid}/children") as file:
            return file.read().strip()

    def switch_off(self):
        """As a power failure ends it, but for what the disks have in their caches, which stays."""
        os.kill(int(self.child()), signal.SIGKILL)
        self.init.wait()

    def inside(self, command):
        return ["nsenter", "-t", self.child(), "-n", "-m", "-u", "-p", "-r", "-w", "env",
                "PATH=/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin", "bash", "-c", command]

    def run(self, command, check=True):
        done = subprocess.run(self.inside(command), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if check and done.returncode != 0:
            die(f"{self.name}: `{command}` ended with {done.returncode}: {done.stdout}\n{self.logs()}")
        return done.stdout

    def until(self, command, words, seconds=60):
        """Says it again and again, until it answers so."""
        answer = ""
        for _ in range(seconds * 2):
            answer = self.run(command, check=False)
            if re.search(words, answer):
                return answer
            time.sleep(0.5)
        die(f"{self.name}: `{command}` never said {words!r}, but: {answer}\n{self.logs()}")

    def read(self, path):
        with open(f"/proc/{self.child()}/root{path}", "rb") as file:
            return file.read()

    def write(self, path, text):
        with open(f"/proc/{self.child()}/root{path}", "w") as file:
            file.write(text)

    def logs(self):
        return self.run("tail -n 5 /var/log/sluice-*.log 2>/dev/null", check=False)

    def wait(self, done, what):
        for _ in range(200):
            if done():
                return
            time.sleep(0.05)
        die(f"{self.name}: {what}")


def chapter(document, heading):
    """The code blocks of a chapter that begin with `# on WHO`, in order: (WHO, commands)."""
    with open(document) as file:
        text = file.read()
    text = text.split(f"\n## {heading}\n", 1)[1].split("\n## ", 1)[0]
    blocks = []
    for block in re.findall(r"(?:^    .*\n)+", text, re.M):
        for line in block.splitlines():
            line = line[4:]
            if line.startswith("# on "):
                blocks.append((line[5:].split(":")[0].strip(), []))
            elif blocks and line.strip() and block.startswith("    # on "):
                blocks[-1][1].append(line)
    return blocks
