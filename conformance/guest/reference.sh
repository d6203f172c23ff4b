# A guest whose own kernel serves NFS, with flexible-file layouts towards itself: the cases are tried against it.
set -eu
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export CASE=reference
. /share/lib.sh

# With write delegations, 7.2's client and server together lose the times that `cp -p` and `tar` set.
[ "$REFERENCE" = pnfs ] || echo 0 >/proc/sys/fs/leases-enable

package=$(cat /share/nfs-server)
cp -a "$package/usr/sbin/." /tmp/; export PATH=/tmp:$PATH
modprobe nfsd
# The version 3 lock manager's grace period holds up version 4's locks too.
echo 3 >/proc/sys/fs/nfs/nlm_timeout; echo 3 >/proc/sys/fs/nfs/nlm_grace_period
mount -t nfsd nfsd /proc/fs/nfsd
mkdir -p /srv/export /var/lib/nfs/v4recovery
mount -t tmpfs -o size=95% export /srv/export
chmod 777 /srv/export
rm -f /etc/exports
echo '/srv/export *(rw,no_root_squash,insecure,no_subtree_check,fsid=0'$([ "$REFERENCE" = pnfs ] && echo ,pnfs)')' >/etc/exports
: >/var/lib/nfs/etab; : >/var/lib/nfs/rmtab
rpcbind -w 2>/dev/null || true
exportfs -ra
echo 10 >/proc/fs/nfsd/nfsv4gracetime; echo 10 >/proc/fs/nfsd/nfsv4leasetime
rpc.mountd --no-udp
rpc.nfsd --no-udp -V 3 -V 4.1 -V 4.2 8
cat /proc/fs/nfsd/versions
for try in $(seq 50); do echo Y 2>/dev/null >/proc/fs/nfsd/v4_end_grace && break; sleep 0.1; done
host post reference up
exec sleep 100000
