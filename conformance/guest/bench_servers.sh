# The servers of bench-client, one at a time on one ext4, each as cold as after a boot whenever it starts: this kernel's own
# NFS server (`kernel`), and Sluice, whose directory `inline` keeps its small files in the metadata, as is shipped, and no other.
set -eu
. /share/lib.sh

# The least that the kernel takes, in seconds.
GRACE=10
root=/srv/disk
package=$(cat /share/nfs-server)
mkdir -p /tmp/nfs $root; cp -a "$package/usr/sbin/." /tmp/nfs/; export PATH=/tmp/nfs:$PATH
# In memory: caches that are dropped shall not hold the one server's program, when the other is part of the kernel.
cp "$SLUICE" /run/sluice
modprobe loop 2>/dev/null || true
modprobe nfsd
# It may be there already, with files.
if [ ! -f /share/disk.img ]; then
  truncate -s "${DISK_MIB}M" /share/disk.img
  mkfs.ext4 -q -F -E lazy_itable_init=0,lazy_journal_init=0 /share/disk.img
fi
mount -t nfsd nfsd /proc/fs/nfsd
mkdir -p /var/lib/nfs/v4recovery
rm -f /etc/exports
echo "$root/export *(rw,sync,no_root_squash,insecure,no_subtree_check,fsid=0)" >/etc/exports
: >/var/lib/nfs/etab; : >/var/lib/nfs/rmtab
rpcbind -w 2>/dev/null || true
# By itself it takes a 4096th of the memory.
echo 1048576 >/proc/fs/nfsd/max_block_size
echo $GRACE >/proc/fs/nfsd/nfsv4gracetime; echo $GRACE >/proc/fs/nfsd/nfsv4leasetime
rpc.mountd --no-udp -p 20048

# attach: what the disk holds is read from it.
attach() {
  drop_caches
  mount -t ext4 -o loop /share/disk.img $root
}
detach() {
  sync
  for try in $(seq 100); do umount $root 2>/tmp/umount.error && break; sleep 0.1; done
  ! mountpoint -q $root || fail "$(cat /tmp/umount.error)"
  drop_caches
}

start_kernel() {
  attach
  mkdir -p $root/export/cold
  chmod 777 $root/export/cold
  exportfs -ra
  rpc.nfsd --no-udp -V 4.1 -V 4.2 "$TASKS"
  # Nobody holds anything from before. A kernel without a program that tracks its clients cannot be told so.
  for try in 1 2 3; do
    ! echo Y 2>/dev/null >/proc/fs/nfsd/v4_end_grace || return 0
    sleep 0.1
  done
  sleep $((GRACE + 1))
}
stop_kernel() { rpc.nfsd 0; exportfs -ua; exportfs -f; detach; }

start_sluice() {
  attach
  : >/tmp/up.log
  /run/sluice up --data-dir $root/sluice --data-servers "$DATA_SERVERS" --listen "$GUEST_IP" --allow any --lease "$LEASE" --inline off >>/tmp/up.log 2>&1 &
  up=$!
  for try in $(seq 1200); do
    ! grep -q 'Sluice is ready' /tmp/up.log || return 0
    kill -0 $up 2>/dev/null || break
    sleep 0.1
  done
  fail "Sluice did not start: $(tail -5 /tmp/up.log)"
}
stop_sluice() { kill $up; wait $up || true; tail -n +2 /tmp/up.log | grep -v '^ *$' | tail -3; detach; }
inline() { /run/sluice policy "/$1" --inline 32KiB --data-dir $root/sluice >/dev/null; }

turn=0
while true; do
  turn=$((turn + 1))
  order=$(host await "order$turn")
  set -- $order
  case $1 in
    start|stop) "$1_$2" ;;
    inline) inline "$2" ;;
    busy) ;;
    end) host post "done$turn" 0; exit 0 ;;
    *) fail "no such order: $order" ;;
  esac
  host post "done$turn" "$(busy)"
done
