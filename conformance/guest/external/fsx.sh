# fsx, by the seed: random reads, writes, truncations and whatever else the client kernel offers, each checked against
# what the file must hold. Each program is one way of doing I/O.
set -eu
. /share/external.sh

# Every 200 operations or so the file is closed and opened again, so that what is checked comes from the servers too.
fsx() {
  local mode=$1 seed=$2; shift 2
  mkdir -p "/tmp/fsx/$mode.$seed" $M/fsx
  # The log of operations is written at a failure.
  trial "$mode.$seed" "$SUITE/fsx" -q -N "$OPERATIONS" -S "$seed" -c 200 -P "/tmp/fsx/$mode.$seed" "$@" "$M/fsx/$mode.$seed"
  rm -f "$M/fsx/$mode.$seed"
}

mount_sluice
for seed in $SEEDS; do
  step "seed $seed"
  fsx buffered "$seed" -R -W
  fsx flushed "$seed" -R -W -f
  fsx mapped "$seed"
  fsx direct "$seed" -R -W -Z -r 512 -w 512
done
# Files that reach over the first component and its stripes.
for seed in $SEEDS; do
  fsx large "$seed" -l 80000000 -o 1000000
done
cd /; umount_sluice
