# Times of files that a client answers for by itself (`--delegations times`), beside what there is without: the calls
# that it saves, what programs set and what writing moves, as another client sees it while the delegation is held and
# when it has been returned.
set -eu
. /share/lib.sh

OLD=1000000000
WAYS="touch cp tar utimes"
ROUNDS=200
mtime() { stat -c %Y "$1"; }
# recent SEEN: nobody chose this time: it is of now.
recent() { local now; now=$(date +%s); [ $((now - $1)) -lt 120 ] && [ "$1" -le $((now + 1)) ] || fail "written now, it is of $1"; }

# keeps: whether this kernel answers for times: Linux from 6.11 on.
keeps() { local minor; minor=$(uname -r | cut -d. -f2); case $(uname -r) in [1-5].*) false ;; 6.*) [ "$minor" -ge 11 ] ;; esac; }

# hold FILE: opens it anew for reading and writing, and so gets a delegation; what follows is done under it.
hold() { $PYTHON -c 'import os, sys; os.close(os.open(sys.argv[1], os.O_RDWR))' "$1"; }
# set_old WAY: gives $D/$way the time OLD, as this program does it.
set_old() {
  case $1 in
    touch) touch -d @$OLD $D/touch ;;
    cp) cp -p /tmp/from $D/cp ;;
    tar) tar -C /tmp -cf - from | tar -C $D --overwrite --transform s/from/tar/ -xf - ;;
    # As rsync and install do.
    utimes) $PYTHON -c 'import os, sys; os.utime(sys.argv[1], (int(sys.argv[2]),) * 2)' $D/utimes $OLD ;;
  esac
}
# judge WHO: what became of OLD, for each way; `lost`: it is a time of now instead.
judge() {
  local way seen wanted; wanted=$(cat $D/expected)
  for way in $WAYS; do
    seen=$(mtime $D/$way)
    if [ "$seen" = $OLD ]; then seen=kept; else recent "$seen"; seen=lost; fi
    echo "  $way, $1: $seen"
    same "$seen" "$wanted" "$way, $1 ($KIND)"
  done
  recent "$(mtime $D/written)"
}

# ops: operations and how many of them were sent.
ops() { mountstats | awk '$1 ~ /^[A-Z_]+:$/ && $2 > 0 { print $1, $2 }' | sort; }
spent() { ops | join -a 1 - /tmp/ops | awk '$2 > $3 { printf " %s%d", $1, $2 - $3 } END { print "" }'; }
# counted NAME COMMAND...: the operations that it costs, and GETATTR and SETATTR as metrics.
counted() {
  local name=$1 gets sets start; shift; start=$(now)
  ops >/tmp/ops; gets=$(op_count GETATTR); sets=$(op_count SETATTR)
  "$@"
  gets=$(($(op_count GETATTR) - gets)); sets=$(($(op_count SETATTR) - sets))
  metric "${name}_seconds_$KIND" "$(elapsed "$start")"
  echo "  $name, $KIND:$(spent)"
  metric "${name}_getattrs_$KIND" $gets; metric "${name}_setattrs_$KIND" $sets
  SPENT=$((gets + sets))
}
# Each opens FILE and closes it in the end. look_on: writes once and looks, ROUNDS times. look: writes and looks each
# time. ask: the same, but for the time of modification alone. stamp: writes and sets the times to now.
look_on() { $PYTHON -c '
import os, sys
fd = os.open(sys.argv[1], os.O_RDWR)
os.write(fd, b"line\n")
for i in range(int(sys.argv[2])):
    os.stat(sys.argv[1])
os.close(fd)' "$1" $ROUNDS; }
look() { $PYTHON -c '
import os, sys
fd = os.open(sys.argv[1], os.O_RDWR)
for i in range(int(sys.argv[2])):
    os.write(fd, b"line\n"); os.stat(sys.argv[1])
os.close(fd)' "$1" $ROUNDS; }
ask() {
  local fd
  exec {fd}<>"$1"
  for _ in $(seq $ROUNDS); do echo line >&"$fd"; stat -c %Y "$1" >/dev/null; done
  exec {fd}>&-
}
stamp() { $PYTHON -c '
import os, sys
fd = os.open(sys.argv[1], os.O_RDWR)
for i in range(int(sys.argv[2])):
    os.write(fd, b"line\n"); os.utime(fd)
os.close(fd)' "$1" $ROUNDS; }

for KIND in write times; do
  if [ "$ROLE" = 1 ]; then host restart --delegations $KIND --delegation-quiet 0 >/dev/null; fi
  barrier "restarted-$KIND"
  mount_sluice
  D=$M/times-$KIND
  if [ "$ROLE" = 1 ]; then
    mkdir -p $D; echo from >/tmp/from; touch -d @$OLD /tmp/from
    for name in $WAYS written look_on look ask stamp; do echo $name >$D/$name; done
    # RFC 9754 section 5: a time of before the delegation does not count, and this kernel tells of it in no other way.
    if [ $KIND = times ] && keeps; then echo lost; else echo kept; fi >$D/expected
  fi
  barrier "made-$KIND"
  sleep 2
  if [ "$ROLE" = 1 ]; then
    step "what it costs, $KIND ($(uname -r))"
    for way in look_on look ask stamp; do
      hold $D/$way; counted $way $way $D/$way
      # `look` wants to know the space used, too, which no delegation tells.
      case $way in look*) continue ;; esac
      if [ $KIND = times ] && keeps; then
        [ $SPENT -le 10 ] || fail "$way: $SPENT calls for times that this client answers for"
      else
        [ $SPENT -ge $ROUNDS ] || fail "$way: $SPENT calls for times that the server answers for"
      fi
    done
    step "times of old, set under a delegation"
    before=$(op_count SETATTR)
    for way in $WAYS; do
      hold $D/$way; set_old $way
      same "$(mtime $D/$way)" $OLD "$way, to who did it ($KIND)"
    done
    metric "old_setattrs_$KIND" $(($(op_count SETATTR) - before))
    hold $D/written; echo more >>$D/written
  fi
  barrier "set-$KIND"
  if [ "$ROLE" = 2 ]; then step "while it is held, $KIND"; judge "to another client"; fi
  barrier "seen-$KIND"
  if [ "$ROLE" = 1 ]; then umount_sluice; mount_sluice; judge "to who did it, later"; fi
  barrier "returned-$KIND"
  if [ "$ROLE" = 2 ]; then
    step "when it has been returned, $KIND"
    drop_caches; judge "to another client, later"
    for way in look_on look ask stamp; do recent "$(mtime $D/$way)"; done
    for way in look ask stamp; do same "$(grep -c ^line $D/$way)" $ROUNDS "lines of $way"; done
  fi
  barrier "over-$KIND"
  umount_sluice
  barrier "away-$KIND"
done
echo PASS
