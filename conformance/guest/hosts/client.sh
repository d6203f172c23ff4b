# Sourced by the clients of the three hosts. $1 is the client's number.
export PATH=/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin
set -eu
me=$1
fail() { echo "FAIL $*"; exit 1; }
io() { /usr/bin/python3 /share/io.py "$@"; }
M=/mnt/sluice
cat /share/names >>/etc/hosts
# There is no systemd in a guest, and no archive to install from.
cp /share/systemctl /usr/local/sbin/systemctl
apt() { :; }
# chapter: the lines that the document has for clients, and fstab with them, as they stay on a client's disk.
chapter() { . /share/client; cat /etc/fstab; mountpoint $M || fail "it is not mounted"; }
# boot: what a client that has done so does when it starts.
boot() { mkdir -p $M; grep -o "'mds-host:.*'" /share/client | tr -d "'" >>/etc/fstab; for try in $(seq 60); do mount -a -t nfs,nfs4 && break; sleep 2; done; mountpoint $M || fail "it is not mounted"; }
