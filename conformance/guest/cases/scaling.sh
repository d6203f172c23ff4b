# Bandwidth grows with data servers: every link is shaped to the same rate, low enough that eight of them are much less
# than what this client moves on this machine, and others may use its processors. What is said is what the servers can
# do. Others on the machine only ever take from it, so what misses is measured again, and the best of each figure counts.
set -eu
. /share/lib.sh

MBIT=${MBIT:-}                    # a link; unset: up to 10, 1.25 MB/s
WANTED=${WANTED:-90}              # percent of linear
TRIES=${TRIES:-3}                 # of a number of data servers
rate() { calc "$1 * 1.048576 / $(elapsed $2)"; }   # MiB START -> MB/s

measure() {  # SERVERS: prints "one-file-write one-file-read many-write many-read" in MB/s
  local n=$1 total=$(($1 * MIB)) start out= i pids
  mkdir $M/wide $M/many; policy /wide wide
  start=$(now); parallel write $total; out="$(rate $total $start)"
  drop_caches
  start=$(now); parallel read $total; out="$out $(rate $total $start)"
  start=$(now); many write $((n * 4)) $((MIB / 4)); out="$out $(rate $total $start)"
  drop_caches
  start=$(now); many read $((n * 4)); out="$out $(rate $total $start)"
  rm -r $M/wide $M/many
  FIGURES=$out
}

many() {  # write FILES MIB | read FILES: all at once
  local i pids=
  for i in $(seq $2); do
    if [ $1 = write ]; then dd if=/dev/zero of=$M/many/$i bs=1M count=$3 oflag=direct conv=fsync 2>/dev/null & pids="$pids $!"
    else dd if=$M/many/$i of=/dev/null bs=1M iflag=direct 2>/dev/null & pids="$pids $!"; fi
  done
  for i in $pids; do wait $i || fail "$1 of many files"; done
}

# One wide file. A client that stripes does it with one stream; an older one with parallel streams at distant offsets.
parallel() {  # write|read MIB
  local streams=1 i pids= share
  [ "$STRIPES" = 1 ] || streams=$((n * 4))
  share=$(($2 / streams)); [ $share -ge 1 ] || share=1
  # Old clients' streams start an odd number of segments apart, in a file with small holes: were it a multiple of the
  # data servers, all would go to the same one at the same time.
  local grid=$((share + 1))
  for i in $(seq 0 $((streams - 1))); do
    local at=$((streams == 1 ? 0 : i * grid))
    if [ $1 = write ]; then
      dd if=/dev/zero of=$M/wide/one bs=$((streams == 1 ? 16 : 1))M count=$((streams == 1 ? share / 16 : share)) seek=$((streams == 1 ? 0 : at)) oflag=direct conv=notrunc,fsync 2>/tmp/dd$i & pids="$pids $!"
    else
      dd if=$M/wide/one of=/dev/null bs=$((streams == 1 ? 16 : 1))M count=$((streams == 1 ? share / 16 : share)) skip=$((streams == 1 ? 0 : at)) iflag=direct 2>/tmp/dd$i & pids="$pids $!"
    fi
  done
  for i in $pids; do wait $i || fail "$1 of the wide file: $(cat /tmp/dd*)"; done
}

if [ -z "$MBIT" ]; then
  step "what this client moves when nothing is shaped"
  host fresh 8
  mount_sluice
  mkdir $M/many; slowest=
  for what in write read; do
    start=$(now); many $what 32 8; moved=$(rate 256 $start); drop_caches
    metric "unshaped_$what" $moved MB/s
    slowest=$(echo "$moved ${slowest:-$moved}" | awk '{ print ($1 < $2 ? $1 : $2) }')
  done
  umount_sluice
  # Eight links are 40 % of that.
  MBIT=$(echo $slowest | awk '{ m = int(0.4 * $1); print (m > 10 ? 10 : m < 4 ? 4 : m) }')
fi
metric link $MBIT Mbit/s
MIB=$(((MBIT * 3 + 15) / 16 * 16))   # per data server: some 27 s, beside which starting and ending is nothing

better() {  # FIGURES FIGURES: the higher one of each
  echo "$1 $2" | awk '{ n = NF > 4 ? 4 : 0; for (i = 1; i <= 4; i++) printf "%s ", ($i > $(i + n) ? $i : $(i + n)) }'
}

base=
for n in 1 2 4 8; do
  step "$n data server(s)"
  host fresh $n
  for i in $(seq $((n + 1))); do [ $i = 1 ] || host shape $i $MBIT; done
  mount_sluice
  best= worst=0
  for try in $(seq $TRIES); do
    measure $n
    best=$(better "$FIGURES" "$best")
    worst=$(echo "${base:-$best} $best" | awk -v n=$n '{ w = 1e9; for (i = 1; i <= 4; i++) { p = 100 * $(i + 4) / ($i * n); if (p < w) w = p } printf "%.0f", w }')
    [ $worst -lt $WANTED ] || break
    echo "  try $try: $FIGURES MB/s, $worst % of linear"
  done
  umount_sluice
  [ -n "$base" ] || base=$best
  set -- $best
  metric "${n}ds_one_write" $1 MB/s; metric "${n}ds_one_read" $2 MB/s
  metric "${n}ds_many_write" $3 MB/s; metric "${n}ds_many_read" $4 MB/s
  metric "${n}ds_percent_of_linear" $worst %
  [ $worst -ge $WANTED ] || bad="${bad-} $n: $worst %"
done
[ -z "${bad-}" ] || fail "below $WANTED % of linear:$bad"
echo PASS
