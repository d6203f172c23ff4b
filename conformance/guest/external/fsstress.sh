# fsstress, by the seed: several processes on one tree, every operation that the client kernel offers. It checks little
# itself; afterwards the tree must list, read and go away, and a second client of the same kernel must see the same.
set -eu
. /share/external.sh

stress() {
  local seed=$1
  mkdir -p "$M/stress.$seed"
  # The operations of one file system or another that NFS has not are refused, and that is all there is to say of them.
  trial "seed.$seed.run" "$SUITE/fsstress" -d "$M/stress.$seed" -p 4 -n $((OPERATIONS / 4)) -s "$seed" -X -r
  drop_caches
  trial "seed.$seed.read" readable "$M/stress.$seed"
  trial "seed.$seed.same" same_for_another "stress.$seed"
  trial "seed.$seed.remove" rm -r "$M/stress.$seed"
}
# Every entry's attributes can be had, and every file's content, but of those that are mostly a hole of terabytes.
small() { find "$1" -type f -size -64M -print0; }
readable() { small "$1" | xargs -0 -r cat >/dev/null && find "$1" -ls >/dev/null; }
summary() { (cd "$1" && find . -printf '%P %y %m %U %G %n %s %l\n' | sort && small . | sort -z | xargs -0 -r sha256sum); }
# A mount of its own has neither the first one's cache nor its delegations.
same_for_another() {
  summary "$M/$1" >/tmp/here
  mount_sluice /mnt/other nosharecache
  summary "/mnt/other/$1" >/tmp/there
  umount_sluice /mnt/other
  cmp /tmp/here /tmp/there
}

mount_sluice
for seed in $SEEDS; do
  step "seed $seed"
  stress "$seed"
done
cd /; umount_sluice
