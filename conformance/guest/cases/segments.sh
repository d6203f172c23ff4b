# Mirrored files of every policy, written from beginning to end, over where the layout segments of some of them would end: each
# copy has all of it, so that it can be read whichever data server is gone (ADR 0033).
set -eu
. /share/lib.sh

mount_sluice
D=$M/segments; mkdir $D
POLICIES="default wide wide-any small"
for policy in $POLICIES; do
  mkdir $D/$policy; policy /segments/$policy $policy,mirrors=2,inline=off
  for n in $(seq $ROUNDS); do
    # Over the end of 64 MiB; where each MiB would be a segment, that is over many ends.
    size=72m; [ $policy = wide ] && size=12m
    step "$policy, file $n, $size"
    io write $D/$policy/f$n $size $n --sync
  done
done
wrong=0
for gone in 1 2 3 4; do
  step "without data server $gone"
  host lose ds$gone
  # The metadata server notices within 8 s.
  sleep 9
  drop_caches
  for policy in $POLICIES; do
    size=72m; [ $policy = wide ] && size=12m
    for n in $(seq $ROUNDS); do
      io verify $D/$policy/f$n $size $n --exact || { step "WRONG: $policy, file $n, without data server $gone"; wrong=$((wrong + 1)); }
    done
  done
  host regain
  sleep 4
done
metric wrong $wrong copies
[ $wrong = 0 ] || fail "$wrong copies of files are not what was written"
metric proxied $(( $(proxied) )) B
cd /; umount_sluice
echo PASS
