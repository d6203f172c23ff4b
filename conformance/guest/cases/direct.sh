# File data moves between the client and the data servers, never through the metadata server.
set -eu
. /share/lib.sh

mount_sluice
uses_layouts || fail "the mount does not use flexible-file layouts"
mkdir -p $M/wide $M/many
policy /wide wide

start_proxied=$(proxied)
start_mds=0; reference || start_mds=$(link_bytes 1)

# written and read back: NAME SIZE SEED, in both ways
both_ways() {
  local file=$1 length=$2 seed=$3
  io write "$file" "$length" "$seed" --sync
  drop_caches
  io verify "$file" "$length" "$seed" --exact
  io verify "$file" "$length" "$seed" --exact --direct
  io write "$file" "$length" $((seed + 1000)) --direct --sync
  drop_caches
  io verify "$file" "$length" $((seed + 1000)) --exact
}

step "one file of 256 MiB"
before=$(op_count LAYOUTGET)
both_ways $M/wide/one 256m 1
layouts=$(($(op_count LAYOUTGET) - before))
# Two writes and three reads of a quarter of a GiB.
metric "layoutgets_per_gib_$([ "$STRIPES" = 1 ] && echo stripes || echo segments)" "$(calc "$layouts / 1.25")"
reference || written=$(ds_bytes written)

step "64 files of 16 MiB"
for n in $(seq 64); do io write $M/many/$n 16m $((100 + n)) $([ $((n % 2)) = 0 ] && echo --direct); done
drop_caches
for n in $(seq 64); do io verify $M/many/$n 16m $((100 + n)) --exact $([ $((n % 4)) -lt 2 ] && echo --direct); done

step "where the bytes went"
reads=$(op_count READ); writes=$(op_count WRITE); [ "$reads" -gt 0 ] && [ "$writes" -gt 0 ] || fail "no READ or WRITE counted"
[ "$REFERENCE" = plain ] || [ "$(op_count LAYOUTGET)" -gt 0 ] || fail "no layout was asked for"
if ! reference; then
  same $(($(proxied) - start_proxied)) 0 "proxied bytes"
  # 2.5 GiB of data were moved; what the metadata server's link carries is metadata.
  mds=$(($(link_bytes 1) - start_mds))
  metric mds_link_bytes $mds
  [ $mds -lt $((32 << 20)) ] || fail "$mds bytes crossed the metadata server's link"
  even() {  # WHAT FIGURES...: each of them 15 to 35 % of their sum
    local what=$1 total=0 n; shift
    for n in "$@"; do total=$((total + n)); done
    for n in "$@"; do
      [ $((n * 100)) -ge $((total * 15)) ] && [ $((n * 100)) -le $((total * 35)) ] || fail "$what: uneven: $*"
    done
  }
  even "the wide file" $written
  even "all data read" $(ds_bytes read)
  even "all data written" $(ds_bytes written)
  for n in $(seq "$DATA_SERVERS"); do
    metric "ds${n}_link_bytes" "$(link_bytes $((n + 1)))"
    [ "$(link_bytes $((n + 1)))" -gt $((100 << 20)) ] || fail "almost nothing crossed the link of data server $n"
  done
fi
rm -r $M/wide $M/many
umount_sluice
echo PASS
