# Every server is stopped and started again, one after the other, as an upgrade does it, while two clients work: no
# application sees an error, and nothing is lost.
set -eu
. /share/lib.sh

mount_sluice
D=$M/upgrade
if [ "$ROLE" = 1 ]; then mkdir $D; policy /upgrade wide; fi
barrier ready
mkdir $D/$ROLE $D/$ROLE/files
for n in 1 2 3 4 5 6; do io write $D/$ROLE/files/f$n 1m $n --sync; done
io write $D/$ROLE/large 32m 77 --sync

# Whatever an application does: each ends with an error when one of its calls does.
until_over() { while [ ! -e /tmp/over ]; do "$@" || exit 1; done; }
large() { io verify $D/$ROLE/large 32m 77 --exact --direct && io write $D/$ROLE/large 32m 77 --sync; }
locked() { ( flock 9 && echo "$ROLE" >&9 ) 9>>$D/locked; sleep 0.2; }

step "load"
workers=()
io journal $D/$ROLE/journal /tmp/journal --seconds 60 & workers+=($!)
io reread $D/$ROLE/files --count 6 --seconds 60 & workers+=($!)
until_over large & workers+=($!)
io names $D/$ROLE/names --seconds 60 & workers+=($!)
until_over locked & workers+=($!)
sleep 2
if [ "$ROLE" = 1 ]; then
  for server in ds1 ds2 ds3 ds4 mds; do
    host renew $server
    step "$server was started again"
    # As an administrator waits before the next one.
    until [ "$(host status | json 'sum(d["health"] == "ok" for d in j["data_servers"]) + j["mds"]["grace_seconds_left"]')" = 4 ]; do
      sleep 0.5
    done
  done
  host post renewed
else
  host await renewed >/dev/null
fi
touch /tmp/over
# Loads of a minute, begun long ago.
guard=$(watch_for ${STUCK:-150})
for worker in "${workers[@]}"; do wait $worker || fail "an application saw an error"; done
kill $guard 2>/dev/null || true
barrier quiet

step "all of it is there"
drop_caches
io check-journal $D/$ROLE/journal /tmp/journal
io verify $D/$ROLE/large 32m 77 --exact
for n in 1 2 3 4 5 6; do io verify $D/$ROLE/files/f$n 1m $n --exact; done
[ "$(wc -l <$D/locked)" -gt 2 ] || fail "nothing was locked"
barrier checked
if [ "$ROLE" = 1 ]; then
  host sluice status
  cd /; rm -r $D
fi
barrier removed
umount_sluice
echo PASS
