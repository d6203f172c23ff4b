# What clients may mount, changed under mounts: read only, squashed, forbidden, removed, and back.
set -eu
. /share/lib.sh

mount_path() { mkdir -p "$2"; mount -t nfs -o "vers=$VERS,hard,timeo=100" "$SERVER:$1" "$2"; }
# Names and attributes are looked at anew: what a client has cached of a directory is not where an export begins in it.
fresh() { drop_caches; }

step "an export in the root"
mount_sluice
mkdir -p $M/pub/a/d $M/pub/b; chmod 1777 $M/pub/a; echo hello >$M/pub/a/f
host sluice export add /pub/a --client any --read-only >/dev/null
fresh
mount_path /pub/a /mnt/a
same "$(cat /mnt/a/f)" hello "a read-only export"
refused "Read-only file system" touch /mnt/a/new
refused "Read-only file system" mkdir /mnt/a/e
refused "Read-only file system" rm -f /mnt/a/f
refused "Read-only file system" truncate -s 0 /mnt/a/f
refused "Read-only file system" mv /mnt/a/f /mnt/a/g
refused "Read-only file system" chmod 600 /mnt/a/f
uses_layouts /mnt/a || fail "no layouts"

step "walking into it is crossing into another file system"
fresh
same "$(cat $M/pub/a/f)" hello
refused "Read-only file system" touch $M/pub/a/new
[ "$(stat -c %d $M/pub/a)" != "$(stat -c %d $M/pub)" ] || fail "the same file system"
touch $M/pub/b/here
refused "cross-device" ln $M/pub/b/here $M/pub/a/there

step "a change holds for what is mounted"
host sluice export set /pub/a --read-write --squash none >/dev/null
touch /mnt/a/new; same "$(stat -c %u:%g /mnt/a/new)" 0:0
before=$(proxied)
dd if=/dev/urandom of=/mnt/a/big bs=1M count=16 conv=fsync status=none
same "$(stat -c %s /mnt/a/big)" 16777216
same "$(proxied)" "$before" "bytes through the metadata server"
exec 5>/mnt/a/open; echo one >&5; sync /mnt/a/open
host sluice export set /pub/a --read-only >/dev/null
if (echo two >&5 && sync /mnt/a/open) 2>/dev/null; then fail "wrote into a read-only export"; fi
exec 5>&- || true
same "$(cat /mnt/a/f)" hello "reading goes on"
fresh; same "$(cat /mnt/a/open)" one "what was written before"
host sluice export set /pub/a --read-write --squash all --anonymous 1234:5678 >/dev/null
touch /mnt/a/squashed; same "$(stat -c %u:%g /mnt/a/squashed)" 1234:5678 "squashed"
host sluice export set /pub/a --squash root >/dev/null
touch /mnt/a/root; same "$(stat -c %u:%g /mnt/a/root)" 1234:5678 "root squashed"

step "a client that the root is taken from"
cd /
host sluice export remove / --client any >/dev/null
fresh
refused "denied" ls $M/pub/b
same "$(cat /mnt/a/f)" hello "the export of its own"
mount_path / /mnt/root
same "$(ls /mnt/root)" pub "the root of what it may use"
same "$(ls /mnt/root/pub)" a
same "$(cat /mnt/root/pub/a/f)" hello "through the pseudo-file-system"
refused "Read-only file system" touch /mnt/root/x
refused "No such file" mount_path /pub/b /mnt/none
umount /mnt/root/pub/a 2>/dev/null || true; umount /mnt/root
host sluice export set /pub/a --client 192.0.2.1 >/dev/null; host sluice export remove /pub/a --client any >/dev/null
fresh
refused "denied" cat /mnt/a/f
refused "not permitted" mount_path /pub/a /mnt/none
refused "not permitted" mount_path / /mnt/none

step "and back, without a remount"
host sluice export set / --client any --squash none >/dev/null
host sluice export set /pub/a --client any --squash none >/dev/null
fresh
same "$(ls $M/pub | xargs)" "a b"; same "$(cat /mnt/a/f)" hello
host sluice export remove /pub/a >/dev/null
fresh
refused "Stale" cat /mnt/a/f
umount /mnt/a || umount -l /mnt/a
host sluice export add /pub/a --client any --squash none >/dev/null
fresh
mount_path /pub/a /mnt/a; same "$(cat /mnt/a/f)" hello "exported anew"
umount /mnt/a
umount $M/pub/a 2>/dev/null || true
umount_sluice
echo PASS
