# The same work on local ext4 and on Sluice must leave the same tree.
set -eu
. /share/lib.sh
. /share/tree.sh

mount_sluice
L=/mnt/local; mkdir -p $L
truncate -s 4G /share/local.img
mkfs.ext4 -q -F -N 400000 /share/local.img
modprobe -q loop || true
mount -o loop /share/local.img $L
R=$M/tree; D=$L/tree; mkdir $R $D

sources=$(cat /share/sources)
archive=$(ls "$sources"/*.tar.* 2>/dev/null | head -1) || true
sources=${archive:-$sources}
for dir in $D $R; do
  what=$([ $dir = $D ] && echo ext4 || echo nfs)
  start=$(now); tree_sources $dir "$sources"; metric "sources_${what}_seconds" "$(elapsed $start)"
  start=$(now); tree_git $dir >/tmp/git-$what; metric "git_${what}_seconds" "$(elapsed $start)"
  start=$(now); tree_sqlite $dir >/tmp/sqlite-$what; metric "sqlite_${what}_seconds" "$(elapsed $start)"
  tree_rename_over $dir
done
cmp /tmp/git-ext4 /tmp/git-nfs || fail "git's heads differ"
cmp /tmp/sqlite-ext4 /tmp/sqlite-nfs || fail "the databases differ"

step "operations of the client"
op_table
step "compare"
umount $M; drop_caches; mount_sluice
metric entries "$(find $D/sources $D/moved | wc -l)"
# Packs and the index hold times and inode numbers; the working files are compared, and git has checked itself.
rm -rf $D/*/.git $R/*/.git $D/bare.git $R/bare.git
for part in sources moved; do
  tree_list $D/$part >/tmp/a; tree_list $R/$part >/tmp/b
  diff /tmp/a /tmp/b >/tmp/differences || { head -20 /tmp/differences; fail "$part: attributes differ"; }
done
tree_list $D | timeless | grep -v ' base.db' >/tmp/a; tree_list $R | timeless | grep -v ' base.db' >/tmp/b
diff /tmp/a /tmp/b >/tmp/differences || { head -20 /tmp/differences; fail "attributes differ"; }
diff -r --no-dereference $D $R || fail "contents differ"
rm -rf $R; [ -z "$(ls -A $M)" ] || fail "rm -rf left $(ls -A $M)"
umount_sluice; umount $L; rm /share/local.img
echo PASS
