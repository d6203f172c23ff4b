"""The chapter `Several hosts` of docs/OPERATIONS.md, word by word: its commands are taken from it and given to a metadata
server, three data servers and two clients with stock kernels. Then everything is switched off and on again, in another
order. With an older program, the servers are upgraded and downgraded one at a time, under load."""
import argparse, os, random, shutil, signal, subprocess, tempfile, time

from hosts import Host, chapter, die, sh, step

DATA = [f"ds{n}-host" for n in (1, 2, 3)]
ADDRESS = {"mds-host": "10.77.0.101", "ds1-host": "10.77.0.111", "ds2-host": "10.77.0.112", "ds3-host": "10.77.0.113"}
NAMES = "".join(f"{address} {name}\n" for name, address in ADDRESS.items())
WHO = {
    "every server's host": ["mds-host", *DATA],
    "mds-host": ["mds-host"],
    "each data server's host": DATA,
    "each client": [],
}
ASK = "--mds mds-host --key /etc/sluice/cluster.key"


def install(host, program, deploy):
    """What the package of the chapter has."""
    root = f"/proc/{host.child()}/root"
    for source, target in [("config/mds.toml", "/etc/sluice/mds.toml"),
                           ("config/ds.toml", "/usr/share/doc/sluice/examples/ds.toml"),
                           ("systemd/sluice-mds.service", "/lib/systemd/system/sluice-mds.service"),
                           ("systemd/sluice-ds@.service", "/lib/systemd/system/sluice-ds@.service"),
                           ("systemd/sysusers.conf", "/usr/lib/sysusers.d/sluice.conf"),
                           ("systemd/tmpfiles.conf", "/usr/lib/tmpfiles.d/sluice.conf")]:
        os.makedirs(os.path.dirname(root + target), exist_ok=True)
        shutil.copy(f"{deploy}/{source}", root + target)
    replace(host, program)
    host.run("systemd-sysusers sluice.conf; systemd-tmpfiles --create sluice.conf")


def replace(host, program):
    """The program, as dpkg does it: the running one keeps its file."""
    target = f"/proc/{host.child()}/root/usr/bin/sluice"
    shutil.copy(program, target + ".new")
    os.rename(target + ".new", target)


class Lab:
    def __init__(self, options, home):
        self.options, self.home = options, home
        self.share = f"{home}/share"
        os.makedirs(self.share)
        devices = {name: ["disk1"] if name in DATA else [] for name in ADDRESS}
        self.hosts = {name: Host(home, name, ADDRESS[name], devices[name]) for name in ADDRESS}
        for host in self.hosts.values():
            self.on(host)

    def on(self, host):
        here = os.path.dirname(os.path.abspath(__file__))
        host.switch_on(NAMES)
        root = f"/proc/{host.child()}/root"
        os.makedirs(f"{root}/usr/local/sbin", exist_ok=True)
        shutil.copy(f"{here}/systemctl", f"{root}/usr/local/sbin/systemctl")

    def line(self, host, line):
        """A line of the chapter, where it stands in for something that a lab has not."""
        if line.startswith("apt install ./sluice_"):
            return install(host, self.options.older or self.options.sluice, self.options.deploy)
        if line.startswith("scp "):
            _, _, source, target = line.split()[:4]
            name, path = source.split(":")
            content = self.hosts[name].read(path).decode()
            host.write(target, content)
            return host.run(f"chmod 600 {target}")
        if line.startswith(("sluice status", "sluice doctor")):
            # A few seconds later, as the chapter says.
            return host.until(line, r"(.*\bok .*\n){3}")
        return host.run(line)

    def follow(self):
        """The chapter; what it has for clients is kept for them."""
        client = []
        for who, lines in chapter(self.options.document, "Several hosts"):
            if who not in WHO:
                die(f"the chapter speaks of {who!r}, whom this test does not know")
            if who == "each client":
                client += lines
            for name in WHO[who]:
                for line in lines:
                    said = self.line(self.hosts[name], line)
                    if "doctor" in line or "status" in line or "fingerprint" in line:
                        print(f"{name}$ {line}\n{said or ''}", end="", flush=True)
        return client

    def healthy(self):
        words = r"(.*\bok .*\n){3}"
        return self.hosts["mds-host"].until(f"sluice status {ASK}", words)

    def guest(self, number, script, *arguments):
        """Boots a client; it runs the script of that name, which finds the chapter's lines in /share/client."""
        here = os.path.dirname(os.path.abspath(__file__))
        log = open(f"{self.options.results}/client{number}-{script}.log", "w")
        return subprocess.Popen([self.options.runner, "guest", "run", "--number", str(number), "--share", self.share,
                                 "--timeout", "600", self.options.kernel[number - 1 if len(self.options.kernel) > 1 else 0],
                                 f"{here}/{script}.sh", str(number), *arguments], stdout=log, stderr=log)

    def finish(self, guests):
        for number, guest in guests.items():
            if guest.wait() != 0:
                die(f"client {number} ended with {guest.returncode}: see its log in {self.options.results}")


def upgrade(lab, program, older):
    """One server after the other, as `Upgrading` says, while both clients work."""
    guests = {n: lab.guest(n, "client_works") for n in (1, 2)}
    wait_for(lab, [f"working{n}" for n in (1, 2)])
    for version, order in ((program, [*DATA, "mds-host"]), (older, ["mds-host", *DATA])):
        for name in order:
            host = lab.hosts[name]
            replace(host, version)
            host.run("systemctl restart " + ("sluice-mds" if name == "mds-host" else "sluice-ds@disk1"))
            lab.healthy()
            # By the new program: the older one does not show versions.
            versions = lab.hosts["mds-host"].run(f"/root/sluice status {ASK} | grep ^version")
            step(f"{name} was replaced: {versions.strip()}")
    with open(f"{lab.share}/over", "w"):
        pass
    lab.finish(guests)


def pull_plug(guest):
    """The machine is a child of the command that runs it, in a process group of its own."""
    machines = subprocess.run(["pgrep", "-P", str(guest.pid)], capture_output=True, text=True).stdout.split()
    guest.kill()
    for machine in machines:
        os.killpg(int(machine), signal.SIGKILL)
    guest.wait()


def prepare_clients(lab, lines):
    """What the scripts of clients find in /share: the chapter's lines for them, too."""
    with open(f"{lab.share}/client", "w") as file:
        file.write("\n".join(lines) + "\n")
    with open(f"{lab.share}/names", "w") as file:
        file.write(NAMES)
    shutil.copy(f"{os.path.dirname(os.path.abspath(__file__))}/../io.py", lab.share)
    for name in ("systemctl", "client.sh"):
        shutil.copy(f"{os.path.dirname(os.path.abspath(__file__))}/{name}", lab.share)


def wait_for(lab, names):
    for _ in range(1200):
        if all(os.path.exists(f"{lab.share}/{name}") for name in names):
            return
        time.sleep(0.1)
    die(f"the clients never came to {names}: see {lab.options.results}")


def main():
    parser = argparse.ArgumentParser()
    for name in ("sluice", "runner", "document", "deploy", "results"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--kernel", required=True, type=lambda names: names.split(","))
    parser.add_argument("--older")
    options = parser.parse_args()
    home = tempfile.mkdtemp(prefix="sluice-hosts.", dir="/var/tmp")
    # Not on this machine's own tree: an overlay does not lie within what it is laid over.
    sh(f"mount -t tmpfs -o size=4g t {home}")
    lab = Lab(options, home)
    step("the chapter, word by word")
    client = lab.follow()
    prepare_clients(lab, client)
    lab.finish({n: lab.guest(n, "client_first") for n in (1, 2)})
    step("both clients have it mounted, and wrote")
    if options.older:
        shutil.copy(options.sluice, f"/proc/{lab.hosts['mds-host'].child()}/root/root/sluice")
        upgrade(lab, options.sluice, options.older)
    working = {n: lab.guest(n, "client_dies") for n in (1, 2)}
    wait_for(lab, ["dying1", "dying2"])
    names = list(lab.hosts)
    for _ in range(2):
        # Whatever order the power comes back in.
        order = random.sample(names, len(names))
        step("everything is switched off, and on:", *order)
        for name in random.sample(names, len(names)):
            lab.hosts[name].switch_off()
        for guest in working.values():
            pull_plug(guest)
        working = {}
        for name in order:
            lab.on(lab.hosts[name])
            lab.hosts[name].run("systemctl boot")
            time.sleep(random.random())
    guests = {n: lab.guest(n, "client_again") for n in (1, 2)}
    lab.finish(guests)
    step("mounted again, and nothing was lost")
    print(lab.healthy())
    step("PASS")


if __name__ == "__main__":
    main()
