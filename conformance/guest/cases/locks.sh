# A lock that another client holds and does not give back: shown, and broken by an administrator.
set -eu
. /share/lib.sh

F=$M/plan
# Locks the file and writes to it when it may; says what became of each.
hold() {
  $PYTHON - "$F" <<'PY' >/tmp/held 2>&1 &
import errno, fcntl, os, sys, time
file = open(sys.argv[1], "r+b", buffering=0)
fcntl.lockf(file, fcntl.LOCK_EX)
open("/tmp/locked", "w").close()
while not os.path.exists("/tmp/go"):
    time.sleep(0.1)
try:
    file.write(b"late\n")
    os.fsync(file.fileno())
    print("wrote")
except OSError as error:
    print(errno.errorcode[error.errno])
PY
}
# Locks it, waiting for that, and writes.
take() {
  $PYTHON - "$F" "$1" <<'PY'
import fcntl, os, sys
file = open(sys.argv[1], "r+b", buffering=0)
fcntl.lockf(file, fcntl.LOCK_EX)
file.write(sys.argv[2].encode())
os.fsync(file.fileno())
PY
}
# holds EXPRESSION: of all that is held of the file, `j` one by one.
holds() { host sluice lock list /plan --json | $PYTHON -c 'import json,sys; print(*sorted(str(eval(sys.argv[1])) for j in map(json.loads, sys.stdin)))' "$1"; }

mount_sluice
if [ "$ROLE" = 1 ]; then echo begun >$F; fi
barrier made

step "the first one locks it"
if [ "$ROLE" = 1 ]; then
  hold; holder=$!
  for try in $(seq 100); do if [ -e /tmp/locked ]; then break; fi; sleep 0.1; done
  [ -e /tmp/locked ] || fail "no lock: $(cat /tmp/held)"
fi
barrier locked

step "the second one waits for it, and it is shown"
if [ "$ROLE" = 2 ]; then
  take "mine" & waiter=$!
  sleep 3
  kill -0 $waiter || fail "it does not wait"
  same "$(holds 'j["kind"]' | tr ' ' '\n' | grep -c lock)" 1 "locks"
  same "$(holds 'j["access"] if j["kind"] == "lock" else ""' | xargs)" write "the lock"
  client=$(host sluice lock list /plan --json | $PYTHON -c 'import json,sys; print(*[j["client"] for j in map(json.loads, sys.stdin) if j["kind"] == "lock"])')
  host sluice lock list /plan

  step "broken, it is the second one's"
  begun=$(now)
  host sluice lock break /plan --client "$client"
  wait $waiter || fail "it has no lock"
  took=$(elapsed "$begun"); echo "  after $took s"
  [ "$(calc "$took < 30")" = 1.00 ] || fail "it waited for $took s"
  same "$(holds 'j["kind"]' | tr ' ' '\n' | grep -c lock || true)" 0 "locks left"
fi
barrier broken

step "the first one hears of it, and may open the file again"
if [ "$ROLE" = 1 ]; then
  touch /tmp/go
  wait "$holder" || true
  echo "  its program heard: $(cat /tmp/held)"
  same "$(cat /tmp/held)" EIO "what it writes under the lock that it had"
  drop_caches
  same "$(head -c 4 $F)" mine
  take "back"
  same "$(head -c 4 $F)" back
fi
barrier back
if [ "$ROLE" = 2 ]; then drop_caches; same "$(head -c 4 $F)" back; fi
umount_sluice
echo PASS
