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
# A file that stays in the metadata. fsx begins by making a file long, which takes it to data servers, unless it must leave
# the size alone; its trials of preallocation and copies do the same, and a client that has written 1 MiB asks for a layout.
# So each file is there for some hundred operations. `small.py`, of the case `inline`, is for sizes.
orders() { if reference; then echo 0; else host status | json 'j["mds"]["orders"]'; fi; }
inline() {
  local seed=$1 file=$M/inline/$1 before run flush
  before=$(orders)
  for run in $(seq $(((OPERATIONS + 399) / 400))); do
    head -c 16384 /dev/zero >$file
    flush=; [ $((run % 2)) = 0 ] || flush=-f
    "$SUITE/fsx" -q -L -FKuHzEJB $flush -N 400 -S $((seed * 1000000 + run)) -c 50 -o 4000 -P "/tmp/fsx/inline.$seed" $file || return
    rm -f $file
  done
  same "$(orders)" "$before" "calls of data servers"
}
mkdir $M/inline; policy /inline default,inline=16KiB
for seed in $SEEDS; do
  mkdir -p "/tmp/fsx/inline.$seed"
  trial "inline.$seed" inline "$seed"
done
cd /; umount_sluice
