# Random operations on files that pass from one client to the other, and on records of one file under byte-range locks, each read
# compared byte for byte, while servers die, are mute, cut off, emptied, filled and asked for their layouts.
set -eu
. /share/lib.sh

SECONDS_EACH=${SECONDS_EACH:-20}
# Nobody hears of an error from any of it: data servers that keep files without mirrors are away for less than 30 s.
TROUBLE=kill-mds,kill-mds,kill-ds,kill-ds,kill-both,lose-ds,mute-ds,mute-mds,cut-ds,renew-mds,drain,drain,balance,rotate,recall,recall,drop
mount_sluice

# begin NAME: folders whose files are of every kind.
begin() {
  D=$M/$1
  [ "$ROLE" = 1 ] || return 0
  mkdir $D $D/inline $D/small $D/mirrors $D/wide $D/wide-mirrors $D/default $D/default-mirrors
  policy /$1/inline default,inline=32KiB
  policy /$1/small small,inline=off
  policy /$1/mirrors small,mirrors=2,inline=off
  policy /$1/wide wide
  policy /$1/wide-mirrors wide,mirrors=2
  policy /$1/default default,inline=off
  policy /$1/default-mirrors default,mirrors=2,inline=off
}
verified() {
  # Mirrored files that are several layout segments to this kernel are written through the metadata server (ADR 0033).
  $PYTHON /share/verified.py $M $D/inline $D/small $D/mirrors $D/wide $D/default $D/wide-mirrors $D/default-mirrors \
    --role $ROLE --guests $GUESTS --vers $VERS "$@"
}

for seed in $(seq $SEED $((SEED + ROUNDS - 1))); do
  step "seed $seed"
  if [ "$ROLE" = 1 ] && ! reference; then
    # Every second one with delegations of what was written a moment ago, too.
    [ $((seed % 2)) = 0 ] && host restart --delegation-quiet 0 || host restart
  fi
  begin verified.$seed
  barrier "made-$seed"
  trouble=; reference || trouble="--trouble $TROUBLE"
  verified --seed $seed --seconds $SECONDS_EACH $trouble
  barrier "ran-$seed"
  if [ "$ROLE" = 1 ]; then
    reference || host sluice meta check
    rm -r $D
  fi
done

step "seed $SEED: a client is switched off"
begin lost
barrier lost
if [ "$ROLE" = 2 ]; then verified --seed $SEED --how alone; fi
sleep 12
host kill-guest 2
verified --seed $SEED --how survived
rm -r $D
cd /; umount_sluice
echo PASS
