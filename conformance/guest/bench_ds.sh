# The data server beside this kernel's own NFS server, on one ext4: `bench_ds.sh OPTION...` of bench-ds.
set -eu
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
package=$(cat /share/nfs-server)
mkdir -p /tmp/nfs; cp -a "$package/usr/sbin/." /tmp/nfs/; export PATH=/tmp/nfs:$PATH
ip link set lo up 2>/dev/null || true
modprobe loop 2>/dev/null || true
modprobe nfsd
truncate -s 3G /share/disk.img
mkfs.ext4 -q -F /share/disk.img
mkdir -p /srv/disk
mount -t ext4 -o loop /share/disk.img /srv/disk
mkdir -p /srv/disk/export /srv/disk/sluice /var/lib/nfs/v4recovery
mount -t nfsd nfsd /proc/fs/nfsd
rm -f /etc/exports
echo '/srv/disk/export *(rw,sync,no_root_squash,insecure,no_subtree_check,fsid=1)' >/etc/exports
: >/var/lib/nfs/etab; : >/var/lib/nfs/rmtab
rpcbind -w 2>/dev/null || true
exportfs -ra
# By itself it takes a 4096th of the memory.
echo 1048576 >/proc/fs/nfsd/max_block_size
rpc.mountd --no-udp -p 20048
rpc.nfsd --no-udp -V 3 8
export SLUICE_BENCH_EXPORT=/srv/disk/export
status=0
"$BENCH" bench-ds --sluice "$SLUICE" --peers kernel --data-dir /srv/disk/sluice "$@" || status=$?
umount /srv/disk 2>/dev/null || true
exit $status
