"""What administrators do wrong, on real servers and with two kernels as clients, one after the other: `sluice doctor`,
`status`, `why` or the server itself names the cause in one line, and what was right before is right again afterwards."""
import argparse, json, os, re, shutil, tempfile

from hosts import die, sh, step
from three_hosts import ASK, Lab, prepare_clients, wait_for

DOCTOR = f"sluice doctor {ASK}"
FAKETIME = "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1"


def named(host, words, command=DOCTOR, seconds=60):
    """The line that names the cause."""
    said = host.until(command, words, seconds)
    line = next(line for line in said.splitlines() if re.search(words, line))
    print(f"    {host.name}: {line.strip()}", flush=True)
    return said


def restart_data_server(host):
    host.run("systemctl restart sluice-ds@disk1")


def wrong_key(lab):
    host = lab.hosts["ds2-host"]
    host.run("cp -p /etc/sluice/cluster.key /root/right.key; rm /etc/sluice/cluster.key; "
             "sluice key new /etc/sluice/cluster.key; chown sluice: /etc/sluice/cluster.key")
    restart_data_server(host)
    # On the host itself, with its key; in its log; and from elsewhere what can be known there.
    named(host, "problem .*the cluster key in /etc/sluice/cluster.key .* is not that of the metadata server")
    named(host, "cannot register with the metadata server.*key", "cat /var/log/sluice-ds@disk1.log")
    named(lab.hosts["mds-host"], "problem .*data server 2 .*unreachable for")
    host.run("cp -p /root/right.key /etc/sluice/cluster.key; chown sluice: /etc/sluice/cluster.key")
    restart_data_server(host)


def blocked_port(lab):
    """What a firewall that drops makes of the metadata server: packets to it get no answer."""
    mds, elsewhere = lab.hosts["mds-host"], lab.hosts["ds1-host"]
    link = mds.run("ip -o link show eth0 | sed 's/.*ether //; s/ .*//'").strip()
    # Else it is a host that is not there, which is told sooner and in other words.
    elsewhere.run(f"ip neigh replace {mds.address} lladdr {link} dev eth0 nud permanent")
    mds.run("tc qdisc add dev eth0 root tbf rate 1kbit burst 10 latency 1ms")
    named(elsewhere, "problem .*no answer from 10.77.0.101:2049: does a firewall block port 2049/tcp")
    mds.run("tc qdisc del dev eth0 root")


def two_on_one_directory(lab):
    host, copy = lab.hosts["ds1-host"], lab.hosts["ds3-host"]
    # The same directory on one host: the second one refuses.
    second = "runuser -u sluice -- timeout 20 sluice ds --config /etc/sluice/ds-disk1.toml --listen '[::]:2060' 2>&1"
    named(host, "sluice: .*(in use|another)", second)
    # A copy of it on another host: both have the store's name.
    content = f"/proc/{host.child()}/root/srv/sluice/disk1/store"
    sh(f"mkdir -p /proc/{copy.child()}/root/srv/sluice/copy && cp -a {content} /proc/{copy.child()}/root/srv/sluice/copy/")
    copy.run("chown -R sluice: /srv/sluice/copy; sed 's|disk1|copy|; s|^# listen.*|listen = \"[::]:2060\"|' "
             "/etc/sluice/ds-disk1.toml >/etc/sluice/ds-copy.toml; systemctl start sluice-ds@copy")
    named(lab.hosts["mds-host"], "problem .*10.77.0.113 was refused .*are there two on one directory")
    copy.run("systemctl stop sluice-ds@copy")


def full_device(lab):
    host = lab.hosts["ds2-host"]
    host.run("fallocate -l 700M /srv/sluice/disk1/filler || dd if=/dev/zero of=/srv/sluice/disk1/filler bs=1M 2>/dev/null || true")
    named(lab.hosts["mds-host"], "problem .*data server 2 .* is full: remove files, or add a data server")
    named(lab.hosts["mds-host"], r"(?m)^2 .*(full|no space)", f"sluice status {ASK}")
    host.run("rm /srv/sluice/disk1/filler")


def few_descriptors(lab):
    host = lab.hosts["ds3-host"]
    host.write("/etc/sluice/sluice-ds@disk1.limit", "1024")
    restart_data_server(host)
    named(lab.hosts["mds-host"], r"problem .*data server 3 .* may have 1024 file descriptors only.*LimitNOFILE")
    host.run("rm /etc/sluice/sluice-ds@disk1.limit")
    restart_data_server(host)


def clock_off(lab):
    if not os.path.exists(FAKETIME):
        print("    NOT RUN: a clock that is off needs the package libfaketime", flush=True)
        return
    host = lab.hosts["ds1-host"]
    host.write("/etc/sluice/sluice-ds@disk1.env", f"LD_PRELOAD={FAKETIME} FAKETIME=+3600 DONT_FAKE_MONOTONIC=1")
    restart_data_server(host)
    named(lab.hosts["mds-host"], "problem .*the clock of data server 1 .* is (59|60) min ahead of the metadata server")
    host.run("rm /etc/sluice/sluice-ds@disk1.env")
    restart_data_server(host)


class Client:
    """A guest that does what it is told: the script client_obeys."""

    def __init__(self, lab, number):
        self.lab, self.number, self.address, self.orders = lab, number, f"10.77.0.{number + 10}", 0
        self.machine = lab.guest(number, "client_obeys")

    def begin(self, order):
        self.orders += 1
        path = f"{self.lab.share}/order{self.number}-{self.orders}"
        with open(f"{path}.new", "w") as file:
            file.write(order)
        os.rename(f"{path}.new", path)
        return self.orders

    def end(self, order):
        wait_for(self.lab, [f"ended{self.number}-{order}"])
        ended, said = (open(f"{self.lab.share}/{name}{self.number}-{order}").read() for name in ("ended", "said"))
        if ended.strip() != "0":
            die(f"client {self.number}: order {order} ended with {ended.strip()}: {said}")
        return said

    def run(self, order):
        return self.end(self.begin(order))


def unreachable_from_one_client(lab):
    """A firewall between one client and one data server: to everybody else nothing is wrong."""
    # The new kernel is cut off: it reports after the 5 s that it was told, an old one waits for minutes.
    well, cut = lab.clients
    mds = lab.hosts["mds-host"]
    well.run("io write $M/lonely 4m 8 --sync")
    server = json.loads(mds.run(f"sluice why /lonely --json {ASK}"))["components"][0]["slots"][0]["data_server"]
    host = lab.hosts[f"ds{server}-host"]
    # What it sends to that client goes to nobody's card, so that no connection begins.
    host.run(f"ip neigh replace {cut.address} lladdr 02:00:00:00:00:01 dev eth0 nud permanent")
    reading = cut.begin("io verify $M/lonely 4m 8 --exact")
    well.run("echo 3 >/proc/sys/vm/drop_caches; io verify $M/lonely 4m 8 --exact")
    both = fr"{re.escape(cut.address)} .*fails at data server {server} .*a firewall or a route that is missing"
    named(mds, f"problem  {both}")
    named(mds, rf"proxied .*the client fails at data server {server} ", f"sluice why /lonely --client {cut.address} {ASK}")
    cut.end(reading)
    said = named(mds, rf"(?m)^warning: {re.escape(cut.address)} .*the client fails at data server {server} ", f"sluice status {ASK}")
    if f"warning: {well.address}" in said:
        die(f"a client is named that is well: {said}")
    host.run(f"ip neigh del {cut.address} dev eth0")


def old_kernel_on_wide(lab):
    """Stripes of a megabyte, which an old kernel takes one at a time. It works all the same."""
    old, new = lab.clients
    new.run("mkdir $M/wide")
    lab.hosts["mds-host"].run(f"sluice policy /wide wide {ASK}")
    new.run("io write $M/wide/file 24m 7 --sync")
    old.run("io verify $M/wide/file 24m 7 --exact")
    named(lab.hosts["mds-host"], f"note .*stripes take a kernel of 6.18 or newer.*`wide-any`: .*{old.address} ")
    why = named(lab.hosts["mds-host"], "layouts  one stripe unit at a time, which is slow: stripes take a kernel of 6.18",
                f"sluice why /wide/file --client {old.address} {ASK}")
    if re.search(r"layouts  one stripe", lab.hosts["mds-host"].run(f"sluice why /wide/file --client {new.address} {ASK}")):
        die(f"the new kernel is blamed, too: {why}")


def mounted_badly(lab):
    """`doctor` on a client's own host, of two mounts there: only what is wrong with each."""
    client = lab.clients[1]
    shutil.copy(lab.options.sluice, f"{lab.share}/sluice")
    shutil.copy(f"/proc/{lab.hosts['mds-host'].child()}/root/etc/sluice/cluster.key", lab.share)
    client.run("echo 16384 >/sys/class/bdi/$(mountpoint -d $M)/read_ahead_kb; "
               "mkdir /mnt/bad; mount -t nfs -o vers=4.1,softerr,nosharecache mds-host:/ /mnt/bad")
    # It ends with 1: a data server that was refused, above, is told for ten minutes.
    said = client.run("/share/sluice doctor --mds mds-host --key /share/cluster.key || true")
    client.run("umount /mnt/bad; rm /share/sluice /share/cluster.key")
    for words in ("over 4.1: .* need vers=4.2", "one connection for each server: nconnect=", "mounted soft: .* use hard",
                  "reads 128 KiB ahead: .* echo 16384 > /sys/class/bdi/"):
        line = re.search(f"(?m)^note     /mnt/bad .*{words}.*", said) or die(f"doctor does not say {words!r}: {said}")
        print(f"    {client.address}: {line[0]}", flush=True)
    if " /mnt/sluice " in said:
        die(f"a mount is blamed that is as the chapter has it: {said}")


def main():
    parser = argparse.ArgumentParser()
    for name in ("sluice", "runner", "document", "deploy", "results", "kernel"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--older")
    options = parser.parse_args()
    options.kernel = options.kernel.split(",")
    home = tempfile.mkdtemp(prefix="sluice-hosts.", dir="/var/tmp")
    sh(f"mount -t tmpfs -o size=4g t {home}")
    lab = Lab(options, home)
    prepare_clients(lab, lab.follow())
    # The old one first.
    lab.clients = [Client(lab, number) for number in (1, 2)]
    for fault in (wrong_key, blocked_port, two_on_one_directory, full_device, few_descriptors, clock_off):
        step(fault.__name__.replace("_", " "))
        fault(lab)
        lab.healthy()
    wait_for(lab, ["obeys1", "obeys2"])
    for fault in (mounted_badly, unreachable_from_one_client, old_kernel_on_wide):
        step(fault.__name__.replace("_", " "))
        fault(lab)
        lab.healthy()
    for client in lab.clients:
        client.begin("")
    lab.finish({client.number: client.machine for client in lab.clients})
    # Refusals are told for ten minutes; nothing else is left of it all.
    step("PASS")


if __name__ == "__main__":
    main()
