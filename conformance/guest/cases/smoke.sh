# What a user does in a day, once.
set -eu
. /share/lib.sh

step "mount vers=$VERS"
mount_sluice
mkdir $M/smoke; cd $M/smoke

step "names"
same "$(ls -A)" "" "an empty directory"
touch empty; [ -f empty ] && [ ! -s empty ] || fail touch
echo hello >greeting; same "$(cat greeting)" hello cat
echo again >>greeting; same "$(wc -l <greeting)" 2 append
mkdir -p a/b c; mv greeting a/b/moved; same "$(cat a/b/moved)" "hello
again" "a file moved across directories"
mv a/b c/b; [ -d c/b ] && [ ! -e a/b ] || fail "a directory moved across directories"
same "$(stat -c %h c)" 3 "links of a directory"; same "$(stat -c %h a)" 2 "links of a directory"
ln c/b/moved hard; same "$(stat -c %h hard)" 2 "hard link"
same "$(stat -c %i hard)" "$(stat -c %i c/b/moved)" "inode of a hard link"
ln -s c/b/moved soft; same "$(readlink soft)" c/b/moved; same "$(head -1 soft)" hello "through a symlink"
echo new >replacement; mv replacement hard; same "$(cat hard)" new "rename over a file"
same "$(stat -c %h c/b/moved)" 1 "links after a rename over"
mknod fifo p; [ -p fifo ] || fail fifo
mknod device c 1 3; same "$(stat -c '%F %t %T' device)" "character special file 1 3"
echo 2 >/proc/sys/vm/drop_caches
echo through >fifo & same "$(cat fifo)" through "a FIFO that this machine has to look up"; wait
echo 2 >/proc/sys/vm/drop_caches; echo nothing >device || fail "a device that this machine has to look up"
mkdir not-empty; touch not-empty/x; refused "not empty" rmdir not-empty
refused "File exists" mkdir a
refused "No such file" cat missing
refused "Not a directory" ls hard/x
long=$(printf 'n%.0s' $(seq 255)); touch "$long"; rm "$long"
refused "too long" touch "${long}n"
touch $'sp ace\nline' 'ünï-☃'; [ "$(ls | head -c 100000 | grep -c '☃')" = 1 ] || fail "a listing of odd names"
[ -e $'sp ace\nline' ] && [ -e 'ünï-☃' ] || fail "odd names"

step "attributes"
chmod 4751 empty; same "$(stat -c %a empty)" 4751 chmod
chown 1234:5678 empty; same "$(stat -c %u:%g empty)" 1234:5678 chown
same "$(stat -c %a empty)" 751 "a change of owner drops set-uid"
touch -d '2001-02-03 04:05:06.789012345 UTC' empty
same "$(stat -c %.9Y empty)" 981173106.789012345 "mtime to the nanosecond"
truncate -s 1000000 sized; same "$(stat -c %s sized)" 1000000 truncate
truncate -s 10 sized; same "$(stat -c %s sized)" 10
same "$(od -An -tx1 sized | tr -d ' \n')" 00000000000000000000 "a truncated file reads as zeros"
df -P . | awk 'NR == 2 && $2 > 0 && $4 > 0 { ok = 1 } END { exit !ok }' || fail df
# All data servers of this installation lie on one device.
reference || host status | json 'j["data_servers"][0]["capacity_bytes"] >> 10' >/tmp/capacity
reference || df -kP . | awk -v c="$(cat /tmp/capacity)" 'NR == 2 { d = $2 - c; exit !(d < 65536 && d > -65536) }' || fail "df: $(df -kP . | tail -1), the device has $(cat /tmp/capacity) KiB"
df -iP . | awk 'NR == 2 && $2 > 0 { ok = 1 } END { exit !ok }' || fail "df -i"
umask 027; touch masked; mkdir masked.d; umask 022
same "$(stat -c %a masked masked.d | xargs)" "640 750" umask

step "what is written and cut off at once stays off"
for n in 1 2 3; do
  $PYTHON -c 'import os, sys
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
os.write(fd, b"a" * 262144); os.close(fd)
fd = os.open(sys.argv[1], os.O_RDWR)
os.pwrite(fd, b"b" * 131072, 65536); os.ftruncate(fd, 131072); os.close(fd)
assert os.stat(sys.argv[1]).st_size == 131072, os.stat(sys.argv[1]).st_size' $M/cut$n
  rm $M/cut$n
done

step "permissions of an unprivileged user"
mkdir -m 700 private; echo secret >private/file; echo closed >closed; chmod 600 closed
mkdir -m 1777 sticky; touch sticky/roots
as_user() { setpriv --reuid 1000 --regid 1000 --clear-groups "$@"; }
refused "Permission denied" as_user cat private/file
refused "Permission denied" as_user cat closed
refused "Permission denied" as_user touch here
refused "not permitted" as_user rm -f sticky/roots
as_user touch sticky/mine; same "$(stat -c %u:%g sticky/mine)" 1000:1000
refused "not permitted" as_user chown 0 sticky/mine
mkdir -m 2777 inherit; chgrp 4321 inherit; chmod 2777 inherit; as_user touch inherit/f
same "$(stat -c %g inherit/f)" 4321 "a set-gid directory gives its group"

step "system calls"
$PYTHON /share/posix.py $VERS

step "a listing of 10,000 entries"
mkdir many
$PYTHON - <<'P'
import os
for number in range(10000): os.close(os.open(f"many/entry-{number:05}", os.O_CREAT | os.O_WRONLY))
P
cd /; umount_sluice
mount_sluice; cd $M/smoke
same "$(ls -f many | grep -c '^entry-')" 10000 "entries listed"
same "$(ls -U many | sort -u | wc -l)" 10000 "different entries"
same "$(find many -type f | wc -l)" 10000 "with attributes"

step "after a remount"
same "$(cat c/b/moved)" "hello
again"; same "$(stat -c %a:%u:%g empty)" 751:1234:5678
same "$(stat -c %s sized)" 10

step "remove everything"
cd $M; rm -r smoke; same "$(ls -A $M)" "" "what is left"
cd /; umount_sluice
echo PASS
