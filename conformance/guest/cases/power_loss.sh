# The servers lose power under load, again and again, at random moments. The client goes on by itself without an error,
# and every promise made to an application holds: synced bytes and sizes, names, attributes. Every other time a second
# client dies with the servers: nobody is left to say anything twice.
set -eu
. /share/power.sh

# Operations that were done before the loss, done again when the client repeated them, and failed then.
twice=0

power_on || fail "the servers did not start"
mount_sluice
for round in $(seq "$ROUNDS"); do
  doomed=
  rm -f /tmp/stop
  power load "$M/s$round" "/tmp/log-s$round" /tmp/stop >/tmp/said & load=$!
  if [ $((round % 2)) = 0 ]; then doomed=d$round; power_client $doomed; fi
  delay=$(random 1 5)
  sleep "$delay"
  host power off server ${doomed:+client}
  step "round $round: power lost ${doomed:+with a client} after $delay s"
  sleep "$(random 0 1)"
  start=$(now)
  power_on || fail "round $round: the servers did not come back"
  back=$(elapsed "$start")
  sleep "$(random 1 3)"
  touch /tmp/stop
  for try in $(seq 900); do kill -0 $load 2>/dev/null || break; sleep 0.1; done
  kill -0 $load 2>/dev/null && fail "round $round: the client did not go on within 90 s"
  wait $load || { cat /tmp/said; fail "round $round: an application saw an error"; }
  cat /tmp/said
  twice=$((twice + $(grep -c ^TWICE /tmp/said || true)))
  step "round $round: servers back after $back s, the client went on"
  healthy
  consistent
  # Nothing of what follows may come from the client's cache.
  umount_sluice
  drop_caches
  mount_sluice
  power check "$M/s$round" "/tmp/log-s$round" || fail "round $round: a promise was broken"
  [ -z "$doomed" ] || power check "$M/$doomed" "/share/log-$doomed" || fail "round $round: a promise to the dead client was broken"
  # Older rounds have outlived several losses by now; what is removed must stay removed.
  old=$((round - 3))
  if [ $old -ge 1 ]; then
    power check "$M/s$old" "/tmp/log-s$old" || fail "round $round: a promise of round $old was broken"
    rm -r "$M/s$old"; [ ! -e "$M/d$old" ] || rm -r "$M/d$old"
  fi
  for gone in $(seq 1 $old); do [ ! -e "$M/s$gone" ] || fail "round $round: s$gone was removed and is back"; done
done
metric rounds "$ROUNDS"
metric ran_twice "$twice"
same "$twice" 0 "operations that ran twice"
umount_sluice
echo PASS
