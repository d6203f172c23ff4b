# Data servers that were added are filled by those that were there while clients read and write: no error, everything right,
# all about as full in the end, and nothing goes through the metadata server.
set -eu
. /share/lib.sh

SECONDS_EACH=${SECONDS_EACH:-20}
# Data servers on one device are as full as each other.
host devices 1024
mount_sluice
D=$M/balance; mkdir $D $D/mirrors $D/wide
policy /balance small; policy /balance/mirrors small,mirrors=2; policy /balance/wide wide-any
# Two of them hold nothing, as if they had been added just now.
for id in 3 4; do host sluice ds drain $id >/dev/null; done
for n in $(seq 40); do io write $D/f$n 8m $n --sync; done
for n in $(seq 4); do io write $D/mirrors/m$n 8m $((n + 100)) --sync; done
io write $D/wide/long 96m 77 --sync
for n in $(seq 100); do echo "small $n" >$D/small$n; done
sync
for id in 3 4; do host sluice ds undrain $id >/dev/null; done

# How full each is, in whole percent, the fullest last.
shares() { host sluice ds list --json | json '" ".join(str(s) for s in sorted(100 * d["used_bytes"] // (d["used_bytes"] + d["free_bytes"]) for d in j))'; }
spread() { shares | awk '{ print $NF - $1 }'; }
# look EXPRESSION: of the balance, called `j`.
look() { host sluice ds balance --look --json | json "$1"; }
before=$(spread)
step "they are $(shares) percent full"
[ "$before" -ge 20 ] || fail "they are not unlike enough for this case"

step "writers, readers, names; the data servers are balanced under them"
writers=
for n in 1 2 3; do io journal $D/log$n /tmp/log$n --seconds $SECONDS_EACH --stalls /tmp/stall$n & writers="$writers $!"; done
io journal $D/mirrors/log4 /tmp/log4 --seconds $SECONDS_EACH --stalls /tmp/stall4 & writers="$writers $!"
io names $D/names --seconds $SECONDS_EACH & writers="$writers $!"
for n in $(seq 8); do io write $D/g$n 1m $n --sync; done
sleep 2
start=$(now)
host sluice ds balance --to 4 --no-wait
until [ "$(look 'j["state"]')" != running ]; do
  awk -v took="$(elapsed $start)" 'BEGIN { exit !(took <= 120) }' || fail "still not balanced: $(host sluice ds balance --look)"
  sleep 1
done
metric balance_seconds "$(elapsed $start)" s
step "they are $(shares) percent full"
# Writers have gone on meanwhile.
[ "$(spread)" -lt $((before / 2)) ] || fail "they are as unlike as before"
host sluice ds balance --look
same "$(look 'j["state"]')" balanced "how it ended"
[ "$(look 'j["moved"]["bytes"] >> 20')" -ge 64 ] || fail "too little was moved: $(look 'j["moved"]')"
for n in $writers; do wait $n || fail "a reader or writer saw an error"; done
sort -n /tmp/stall* | tail -1 >/tmp/worst
metric balance_stall_seconds "$(cat /tmp/worst)" s
awk -v took="$(cat /tmp/worst)" 'BEGIN { exit !(took <= 30) }' || fail "somebody stood still for $(cat /tmp/worst) s"

# right DIR: all data is, and comes straight from data servers.
right() {
  local n proxied
  proxied=$(proxied)
  for n in 1 2 3; do io check-journal $1/balance/log$n /tmp/log$n; done
  io check-journal $1/balance/mirrors/log4 /tmp/log4
  for n in $(seq 40); do io verify $1/balance/f$n 8m $n --exact; done
  for n in $(seq 8); do io verify $1/balance/g$n 1m $n --exact; done
  for n in $(seq 4); do io verify $1/balance/mirrors/m$n 8m $((n + 100)) --exact; done
  io verify $1/balance/wide/long 96m 77 --exact
  for n in $(seq 100); do same "$(cat $1/balance/small$n)" "small $n" "a small file"; done
  same $(( $(proxied) - proxied )) 0 "bytes through the metadata server"
}
drop_caches
right $M
mount_sluice /mnt/second nosharecache
right /mnt/second
umount_sluice /mnt/second
rm -r $D
umount_sluice
echo PASS
