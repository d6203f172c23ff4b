# The servers of the power-loss cases, in a guest that can be switched off: `power_server.sh NAME [ROLES]`.
# Their disk is an image on the share. The guest caches it like a disk with a volatile cache, and only a flush carries
# data to the host: what was never flushed is gone with the guest. ROLES (mds, ds) lie about it.
set -eu
. /share/lib.sh

name=$1 lying=${2:-}
disk=/share/disk.img root=/srv/disk
gave_up() { echo "the servers did not start"; host post "$name" failed; }
trap gave_up EXIT
modprobe loop 2>/dev/null || true
if [ ! -f $disk ]; then
  truncate -s 3G $disk.new
  mkfs.ext4 -q -F $disk.new
  mv $disk.new $disk
fi
mkdir -p $root
# Mounting replays the journal; a file system that needs more than that is a failure.
mount -t ext4 -o loop $disk $root
! dmesg | grep -i 'ext4-fs error\|needs.*fsck' || fail "the file system is damaged"
if [ -n "$lying" ]; then export SLUICE_UNSAFE_NO_SYNC=$lying; fi
: >/tmp/up.log
/share/sluice up --data-dir $root/sluice --data-servers "$DATA_SERVERS" --listen "$GUEST_IP" --allow any --lease "$LEASE" --inline "$INLINE" >>/tmp/up.log 2>&1 &
up=$!
tail -n +1 -f /tmp/up.log &
for try in $(seq 600); do
  ! grep -q 'Sluice is ready' /tmp/up.log || break
  kill -0 $up 2>/dev/null || exit 1
  sleep 0.1
done
grep -q 'Sluice is ready' /tmp/up.log || exit 1
cp $root/sluice/cluster.key /share/cluster.key
# The installation itself is safe whoever lies: what is lost is what was promised to clients.
[ -z "$lying" ] || { sync; echo "synced: from now on $lying lies"; }
trap - EXIT
host post "$name" ready
wait $up
