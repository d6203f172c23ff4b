# The checks of `direct` can fail: with layouts forbidden everything goes through the metadata server, correctly.
set -eu
. /share/lib.sh

host restart --no-layouts
mount_sluice
before=$(proxied); link=$(link_bytes 1)
io write $M/file 64m 5 --sync
drop_caches
io verify $M/file 64m 5 --exact
io verify $M/file 64m 5 --exact --direct
moved=$(($(proxied) - before))
[ $moved -ge $((180 << 20)) ] || fail "only $moved bytes were counted as proxied"
[ $(($(link_bytes 1) - link)) -ge $((180 << 20)) ] || fail "the metadata server's link was idle"
umount_sluice

step "layouts again, the same file"
host restart
mount_sluice
uses_layouts || fail "the mount does not use flexible-file layouts"
before=$(proxied)
io verify $M/file 64m 5 --exact
same $(($(proxied) - before)) 0 "proxied bytes with layouts allowed again"
umount_sluice
echo PASS
