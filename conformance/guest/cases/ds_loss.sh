# Without mirrors, a data server that is lost means a clear error in a bounded time, for its own files only.
set -eu
. /share/lib.sh

# Documented bound: the metadata server notices within its own time-out, the client is told by recall.
BOUND=${BOUND:-90}
mount_sluice
D=$M/loss; mkdir $D
# Small enough for one data server each, enough files for every server to hold some.
for n in $(seq 16); do io write $D/f$n 2m $n --sync; done
drop_caches

# errors_of REQUEST: applies it, then reads every file at once; says how many failed, and that each ended in time.
errors_of() {
  local n pids= failed=0 start
  rm -f /tmp/rc*
  host $1
  start=$(now)
  for n in $(seq 16); do
    ( timeout -s KILL $((BOUND * 2)) $PYTHON /share/io.py verify $D/f$n 2m $n >/tmp/out$n 2>&1 && echo 0 >/tmp/rc$n || echo $? >/tmp/rc$n ) & pids="$pids $!"
  done
  wait $pids
  for n in $(seq 16); do
    case $(cat /tmp/rc$n) in
      0) ;;
      137) fail "$1: reading f$n hung for $((BOUND * 2)) s" ;;
      *) grep -q 'Input/output error\|Errno 5' /tmp/out$n || fail "$1: reading f$n: $(tail -1 /tmp/out$n)"; failed=$((failed + 1)) ;;
    esac
  done
  metric "$(echo $1 | tr ' ' _)_seconds" "$(elapsed $start)"
  awk -v took="$(elapsed $start)" -v bound=$BOUND 'BEGIN { exit !(took <= bound) }' || fail "$1: errors came after $(elapsed $start) s, bound $BOUND s"
  [ $failed -ge 1 ] || fail "$1: no file was on that data server"
  [ $failed -le 8 ] || fail "$1: $failed of 16 files failed"
  step "$1: $failed of 16 files had EIO, after $(elapsed $start) s"
}

# recovers WHAT: until every file is right again. A client may avoid a device it has given up for two minutes.
recovers() {
  local start n wrong=1
  start=$(now)
  while [ -n "$wrong" ]; do
    drop_caches; wrong=
    for n in $(seq 16); do io verify $D/f$n 2m $n --exact >/dev/null 2>&1 || { wrong=$n; break; }; done
    awk -v took="$(elapsed $start)" 'BEGIN { exit !(took <= 180) }' || fail "$1: f$wrong is unreadable 180 s after its data server came back"
    [ -z "$wrong" ] || sleep 1
  done
  metric "$1_recovery_seconds" "$(elapsed $start)"
}

step "killed for good"
errors_of "lose ds2"
echo new >$D/new; same "$(cat $D/new)" new "a new file while a data server is gone"
io write $D/new-big 8m 99 --sync; io verify $D/new-big 8m 99
step "back again"
host regain
recovers lost

step "mute: it accepts TCP and never answers"
drop_caches
errors_of "mute ds3"
host unmute ds3
recovers mute
rm -r $D
umount_sluice
echo PASS
