# Limits of a user and of a directory tree: what adds to them is EDQUOT, what does not goes on, what is removed is free again.
set -eu
. /share/lib.sh

as_user() { setpriv --reuid 1000 --regid 1000 --clear-groups "$@"; }
over() { refused "Disk quota exceeded" "$@"; }
quota() { host sluice quota "$@"; }
# used bytes|files WHOSE...
used() { local what=$1; shift; quota show "$@" --json | json 'j["quotas"][0]["'"$what"'"]["used"]'; }
MIB=1048576

step "files"
mount_sluice
mkdir $M/home $M/tree; chmod 777 $M/home $M/tree; cd $M/home
quota set --user 1000 --files 3
as_user touch a b; as_user mkdir d
over as_user touch e
over as_user mkdir e
over as_user ln -s a e
over as_user sh -c 'echo x >e'
same "$(ls | xargs)" "a b d"
touch of_root
as_user touch a; as_user ln a also_a
as_user rm b; as_user touch e
over as_user touch f
same "$(used files --user 1000)" 3

step "sizes"
quota set --user 1000 --files none --bytes 16M
over as_user truncate -s 17M a
same "$(fresh_size a)" 0
as_user truncate -s 16M a
over as_user truncate -s 1 e
as_user truncate -s 0 a
same "$(used bytes --user 1000)" 0

step "who writes to data servers directly"
# One MiB more each time; the limit is noticed when its size is known, and what was on its way by then is in.
chunk() { as_user dd if=/dev/zero of=big bs=1M count=1 oflag=append conv=notrunc,fsync; }
written=0
while chunk 2>/tmp/said; do
  written=$((written + 1))
  [ $written -lt 24 ] || fail "$written MiB are written, of 16"
done
grep -q "Disk quota exceeded" /tmp/said || fail "$(cat /tmp/said)"
metric quota_written "$written" MiB
[ $written -ge 16 ] || fail "refused after $written MiB of 16"
uses_layouts || fail "no layouts"
over chunk
size=$(fresh_size big)
[ "$size" -le $((24 * MIB)) ] || fail "$size bytes are in"
same "$(used bytes --user 1000)" "$size" "what is charged"
over as_user truncate -s 1 e
# What is there may be written over.
as_user dd if=/dev/urandom of=big bs=1M count=2 conv=notrunc,fsync status=none
same "$(fresh_size big)" "$size"

step "it is told"
host sluice why /home/big | grep "quota of .*: full" || fail "$(host sluice why /home/big)"
begun=$(now)
until host sluice status | grep "warning: quotas are used up"; do
  [ "$(elapsed "$begun" | cut -d. -f1)" -lt 60 ] || fail "status does not warn"
  sleep 2
done

step "what is removed is free again"
as_user rm big
same "$(used bytes --user 1000)" 0
as_user dd if=/dev/zero of=big bs=1M count=8 conv=fsync status=none
same "$(used bytes --user 1000)" $((8 * MIB))

step "a tree: df, and root is bound"
quota set --tree /tree --bytes 64M --files 5
until quota show --tree /tree --json | grep -q '"filling": false'; do sleep 0.2; done
same "$(df -B1 --output=size $M/tree | tail -1 | xargs)" $((64 * MIB))
[ "$(df -B1 --output=size $M/home | tail -1 | xargs)" -gt $((64 * MIB)) ] || fail "the limit of the tree is that of all"
dd if=/dev/zero of=$M/tree/some bs=1M count=16 conv=fsync status=none
same "$(df -B1 --output=avail $M/tree | tail -1 | xargs)" $((48 * MIB))
over truncate -s 65M $M/tree/some
made=0
while touch "$M/tree/f$made" 2>/tmp/said; do
  made=$((made + 1)); [ $made -lt 5 ] || fail "$made files more"
done
grep -q "Disk quota exceeded" /tmp/said || fail "$(cat /tmp/said)"
over as_user touch $M/tree/g
same "$(used files --tree /tree)" 5

step "after a restart, and without limits"
host restart
over touch $M/tree/g
over as_user truncate -s 17M a
quota remove --user 1000; quota remove --tree /tree
as_user truncate -s 17M a; touch $M/tree/g
cd $M; rm -r home tree; cd /; umount_sluice
echo PASS
