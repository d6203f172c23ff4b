# Files that are opened again without a word to the server, and that nobody sees anything old for it.
set -eu
. /share/lib.sh

mount_sluice
D=$M/delegated
FILES=200
if [ "$ROLE" = 1 ]; then
  mkdir $D
  for i in $(seq $FILES); do echo "file $i" >$D/$i; done
  echo 0 >$D/counter; echo >$D/mine; echo >$D/db
fi
barrier made
# Files that were changed a moment ago are not delegated to a client that does not ask.
sleep 32

# calls: everything the client has asked the metadata server.
calls() { mountstats | awk '$1 ~ /^[A-Z_]+:$/ && $1 != "SEQUENCE:" && $1 != "NULL:" { n += $2 } END { print n + 0 }'; }
read_all() { $PYTHON -c '
import sys
for i in range(1, int(sys.argv[2]) + 1):
    assert open(f"{sys.argv[1]}/{i}").read() == f"file {i}\n", i' $D $FILES; }

# spent: how many of each operation since `ops` was kept.
ops() { mountstats | awk '$1 ~ /^[A-Z_]+:$/ && $2 > 0 { print $1, $2 }' | sort; }
spent() { ops | join -a 1 - /tmp/ops | awk '$2 > $3 { printf " %s%d", $1, $2 - $3 } END { print "" }'; }

step "the same files, read again and again"
for pass in 1 2 3; do
  ops >/tmp/ops
  before=$(calls); read_all; spent=$(($(calls) - before))
  metric "calls_${pass}_guest_$ROLE" $spent
  echo "  pass $pass:$(spent)"
done
# Reading leaves the time of access in doubt: a look at each file may follow.
[ $spent -le $((FILES / 20)) ] || fail "$spent calls for $FILES files that were read before"
barrier read

step "who writes is seen by those who hold the file"
for turn in $(seq 6); do
  if [ "$ROLE" = $((turn % 2 + 1)) ]; then echo $turn >$D/counter; fi
  barrier "counted-$turn"
  same "$(cat $D/counter)" $turn "the counter"
  barrier "seen-$turn"
done

step "written and opened again without a word"
if [ "$ROLE" = 1 ]; then
  opens() { echo $(($(op_count OPEN) + $(op_count OPEN_NOATTR))); }
  before=$(opens)
  $PYTHON -c '
import sys
for i in range(50):
    with open(sys.argv[1], "r+") as f:
        f.seek(0, 2); f.write(f"line {i}\n")' $D/mine
  spent=$(($(opens) - before)); metric opens $spent
  [ $spent -le 5 ] || fail "$spent OPENs for 50 opens of a file that nobody else uses"
  wrote=$(stat -c %s $D/mine)
  exec 7<>$D/mine
  $PYTHON -c 'import os; os.lseek(7, 0, 2); os.write(7, b"x" * 100000)'
  barrier unflushed; barrier looked
  exec 7>&-
else
  barrier unflushed
  size=$(stat -c %s $D/mine)
  [ "$size" -gt 100000 ] || fail "$size bytes seen of a file whose writer has more"
  same "$(tail -c 100000 $D/mine | tr -d x | wc -c)" 0 "what its writer had not flushed"
  same "$(grep -c ^line $D/mine)" 50 "lines"
  barrier looked
fi

step "a lock taken without a word holds"
lock='import fcntl, sys; fcntl.flock(8, fcntl.LOCK_EX | fcntl.LOCK_NB)'
if [ "$ROLE" = 1 ]; then exec 8<>$D/db; $PYTHON -c "$lock"; fi
barrier locked
if [ "$ROLE" = 2 ]; then
  exec 8<>$D/db
  if $PYTHON -c "$lock" 2>/dev/null; then fail "two clients hold one lock"; fi
fi
barrier refused
if [ "$ROLE" = 1 ]; then exec 8>&-; fi
barrier unlocked
if [ "$ROLE" = 2 ]; then $PYTHON -c "$lock" || fail "the lock is not to be had"; exec 8>&-; fi

step "removed and renamed under a reader"
exec 9<$D/7
barrier open
if [ "$ROLE" = 1 ]; then rm $D/7; mv $D/8 $D/9; fi
barrier gone
same "$(cat <&9)" "file 7" "a file removed while it was open"
exec 9<&-
same "$(cat $D/9)" "file 8" "a file renamed"
metric "returns_$ROLE" "$(op_count DELEGRETURN)"
cd /; umount_sluice
echo PASS
