# Programs that people use, on two clients, in directories that the other one uses at the time: git, rsync, tar, sqlite, fio,
# PostgreSQL. What a host lacks of them is said and left out.
set -eu
. /share/lib.sh

mount_sluice
D=$M/programs
if [ "$ROLE" = 1 ]; then mkdir $D; fi
barrier made
# git goes by names and attributes that Linux remembers for seconds: what others have packed away is not found meanwhile.
G=/mnt/git
mount_sluice $G nosharecache,lookupcache=positive,actimeo=0
seconds=10
export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@example GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@example GIT_CONFIG_NOSYSTEM=1 HOME=/tmp
export GIT_CONFIG_COUNT=2 GIT_CONFIG_KEY_0=gc.auto GIT_CONFIG_VALUE_0=0 GIT_CONFIG_KEY_1=safe.directory GIT_CONFIG_VALUE_1='*'
# Seconds since this machine began, whole.
clock() { local up; read -r up _ </proc/uptime; echo ${up%%.*}; }
has() { command -v "$1" >/dev/null || { step "NOT RUN: $1 is not installed"; return 1; }; }

# A bare repository that everybody pushes to, while both clients repack it.
pushes() {  # WHO
  local n=0 end=$(($(clock) + seconds)) try
  git clone -q $D/bare.git /tmp/work$1 || return 1
  cd /tmp/work$1
  while [ "$(clock)" -lt $end ]; do
    n=$((n + 1)); echo "$1 $n" >"file$1"; seq $n >"long$1"
    git add -A && git commit -qm "$1 $n" || return 1
    for try in $(seq 200); do
      git push -q origin HEAD:main 2>/tmp/push$1 && break
      case $(cat /tmp/push$1) in
        *rejected*|*'cannot lock ref'*|*'failed to update ref'*|*'failed to push'*) ;;
        *) echo "FAIL push: $(cat /tmp/push$1)"; return 1 ;;
      esac
      git pull -q --rebase origin main 2>/tmp/pull$1 || { echo "FAIL pull: $(cat /tmp/pull$1)"; return 1; }
    done
    [ $try -lt 200 ] || { echo "FAIL push: $(cat /tmp/push$1)"; return 1; }
  done
  echo $n >$D/pushed.$1
}
repacks() {
  local end=$(($(clock) + seconds)) n=0
  while [ "$(clock)" -lt $end ]; do
    # The other client may be at it: gc says so and does nothing.
    git -C $D/bare.git gc -q 2>/tmp/gc ||
      case $(cat /tmp/gc) in *'gc is already running'*|*'.lock'*) ;; *) echo "FAIL gc: $(cat /tmp/gc)"; return 1 ;; esac
    n=$((n + 1)); sleep 1
  done
  step "$n times gc"
}
git_pushed() {
  local pids=() pid who wanted n
  [ "$ROLE" = 2 ] || { git init -q --bare -b main $D/bare.git; git clone -q $D/bare.git /tmp/first 2>/dev/null
    (cd /tmp/first; git symbolic-ref HEAD refs/heads/main; echo a >a; git add a; git commit -qm first; git push -q origin main); }
  barrier git-made
  for who in ${ROLE}1 ${ROLE}2; do ( pushes $who ) & pids+=($!); done
  ( repacks ) & pids+=($!)
  for pid in "${pids[@]}"; do wait $pid || fail "git: a client that pushes saw an error"; done
  barrier git-ran
  git -C $D/bare.git fsck --strict --full >/tmp/fsck 2>&1 || fail "git fsck: $(head -5 /tmp/fsck)"
  ! grep -v '^dangling\|^Checking\|^notice' /tmp/fsck || fail "git fsck found that"
  for who in 11 12 21 22; do
    wanted=$(cat $D/pushed.$who)
    git -C $D/bare.git log --format=%s main | grep "^$who " | sort -t' ' -k2n >/tmp/told || true
    seq "$wanted" | sed "s/^/$who /" | cmp - /tmp/told || fail "git: commits of $who are not what was pushed: $wanted"
  done
  step "git: $(git -C $D/bare.git rev-list --count main) commits"
  git clone -q $D/bare.git /tmp/last
  for who in 11 12 21 22; do same "$(cat /tmp/last/file$who)" "$who $(cat $D/pushed.$who)" "git: a file of the clone"; done
  barrier git-end
}

# One repository with a worktree for each process: they share refs and objects.
works() {  # WHO
  local n=0 end=$(($(clock) + seconds))
  cd $D/repo
  git worktree add -q -b branch$1 $D/tree$1 main >/tmp/worktree$1 2>&1 || { echo "FAIL worktree: $(cat /tmp/worktree$1)"; return 1; }
  cd $D/tree$1
  while [ "$(clock)" -lt $end ]; do
    n=$((n + 1)); echo "$1 $n" >file; seq $n >long
    { git add -A && git commit -qm "$1 $n" && git tag "t$1-$n" && git status --porcelain; } >/tmp/commit$1 2>&1 ||
      { echo "FAIL commit: $(cat /tmp/commit$1)"; return 1; }
    [ ! -s /tmp/commit$1 ] || { echo "FAIL status: $(cat /tmp/commit$1)"; return 1; }
    git log -1 --format=%s | grep -qx "$1 $n" || { echo "FAIL the last commit is not $1 $n"; return 1; }
    [ $((n % 5)) != 0 ] || git pack-refs --all 2>/dev/null || true
  done
  echo $n >$D/worked.$1
}
git_worktrees() {
  local pids=() pid who n
  [ "$ROLE" = 2 ] || { git init -q -b main $D/repo; (cd $D/repo; echo a >a; git add a; git commit -qm first); }
  barrier trees-made
  for who in ${ROLE}1 ${ROLE}2; do ( works $who ) & pids+=($!); done
  if [ "$ROLE" = 1 ]; then
    sleep 4
    git -C $D/repo gc -q 2>/tmp/gc || case $(cat /tmp/gc) in *'.lock'*|*'cannot lock'*) ;; *) fail "gc: $(cat /tmp/gc)" ;; esac
  fi
  for pid in "${pids[@]}"; do wait $pid || fail "git: a client in a worktree saw an error"; done
  barrier trees-ran
  git -C $D/repo fsck --strict --full >/tmp/fsck 2>&1 || fail "git fsck of worktrees: $(head -5 /tmp/fsck)"
  for who in 11 12 21 22; do
    n=$(cat $D/worked.$who)
    same "$(git -C $D/repo rev-list --count branch$who)" $((n + 1)) "commits of branch$who"
    same "$(git -C $D/repo tag -l "t$who-*" | wc -l)" $n "tags of $who"
    same "$(git -C $D/tree$who status --porcelain | wc -l)" 0 "changes in tree$who"
  done
  step "git worktrees: $(git -C $D/repo rev-list --count --all) commits"
  barrier trees-end
}

# One client changes a tree in all the ways that there are, the other one copies it with rsync again and again.
rsynced() {
  if [ "$ROLE" = 1 ]; then
    mkdir $D/tree
    $PYTHON - $D/tree $seconds <<'P' || fail "rsync: the writer"
import os, random, shutil, sys, time
folder, until, pick, n = sys.argv[1], time.monotonic() + float(sys.argv[2]), random.Random(1), 0
def name(): return f"{folder}/d{pick.randrange(6)}/f{pick.randrange(30)}"
while time.monotonic() < until:
    n += 1
    try:
        do, at = pick.random(), name()
        os.makedirs(os.path.dirname(at), exist_ok=True)
        if do < .4:
            with open(at, "w") as file: file.write(f"{n} " * pick.randrange(20000))
        elif do < .6:
            with open(at, "a") as file: file.write(f"{n} " * pick.randrange(2000))
        elif do < .7: os.unlink(at)
        elif do < .85: os.rename(at, name())
        elif do < .9: os.truncate(at, pick.randrange(5000))
        elif do < .95: os.link(at, name())
        elif do < .97: os.symlink("../d1/f1", at)
        else: shutil.rmtree(os.path.dirname(at))
    except (FileNotFoundError, FileExistsError): pass
print(n, "changes")
P
  else
    local end=$(($(clock) + seconds)) n=0 status
    while [ "$(clock)" -lt $end ]; do
      # In user-mode-linux 6.1 its three processes may wait for each other for ever, on a tmpfs as well.
      status=0; timeout 20 rsync -aH --delete $D/tree/ $D/copy/ 2>/tmp/rsync || status=$?
      # 24: files vanished before they could be transferred. 23 is that, too, if it comes a moment later, or a name that became
      # a symbolic link; the last rsync, when nobody writes, must have nothing to say.
      case $status in
        0|24) n=$((n + 1)) ;;
        124) step "rsync stood still" ;;
        23) grep -q 'No such file\|vanished\|failed verification\|Too many levels' /tmp/rsync || fail "rsync: $(cat /tmp/rsync)" ;;
        *) fail "rsync ended with $status: $(cat /tmp/rsync)" ;;
      esac
    done
    step "$n times rsync"
  fi
  barrier rsync-ran
  if [ "$ROLE" = 2 ]; then
    # Attributes of directories are believed for a minute (acdirmax).
    sleep 1; mount_sluice /mnt/fresh nosharecache
    rsync -aHc --delete /mnt/fresh/programs/tree/ /mnt/fresh/programs/copy/ || fail "the last rsync"
    rsync -aHcni --delete /mnt/fresh/programs/tree/ /mnt/fresh/programs/copy/ >/tmp/left
    [ ! -s /tmp/left ] || fail "rsync: still different: $(head -3 /tmp/left)"
    diff -r --no-dereference /mnt/fresh/programs/tree /mnt/fresh/programs/copy || fail "rsync: they differ"
    umount_sluice /mnt/fresh
  fi
  barrier rsync-compared
  [ "$ROLE" = 2 ] || diff -r --no-dereference $D/tree $D/copy || fail "rsync: they differ for the writer"
  barrier rsync-end
}

# One packs and unpacks what the other one writes and removes.
tarred() {
  local n=0 status end
  if [ "$ROLE" = 1 ]; then mkdir $D/src $D/out; for n in $(seq 60); do head -c $((n * 1777)) /dev/urandom >$D/src/k$n; done; fi
  barrier tar-made
  end=$(($(clock) + seconds)) n=0
  if [ "$ROLE" = 1 ]; then
    while [ "$(clock)" -lt $end ]; do
      n=$((n + 1)); status=0
      tar cf $D/out/$n.tar -C $D src 2>/tmp/tar || status=$?
      # 1: a file changed as it was read.
      [ $status -le 1 ] || fail "tar ended with $status: $(cat /tmp/tar)"
      mkdir $D/out/$n; tar xf $D/out/$n.tar -C $D/out/$n || fail "tar x of $n"
      for k in $(seq 60); do cmp -s $D/src/k$k $D/out/$n/src/k$k || fail "tar: k$k, which nobody writes, differs in $n"; done
      rm -r $D/out/$n
    done
  else
    while [ "$(clock)" -lt $end ]; do
      n=$((n + 1)); seq $((n * 37 % 5000)) >$D/src/x$((n % 40)); rm -f $D/src/x$((n * 7 % 40)); mv $D/src/x$((n % 40)) $D/src/y$((n % 17)) 2>/dev/null || true
      # As the other one writes it.
      if [ -f $D/out/$n.tar ]; then tar tf $D/out/$n.tar >/dev/null 2>&1 || true; fi
    done
  fi
  step "tar: $n times"
  barrier tar-ran
  [ "$ROLE" = 1 ] || for n in $(ls $D/out | sed -n 's/\.tar$//p'); do tar tf $D/out/$n.tar >/dev/null || fail "tar t of $n on the other client"; done
  barrier tar-end
}

# Money is moved between accounts; whoever looks sees the same sum.
accounts() {
  [ "$ROLE" = 2 ] || $PYTHON - $D/accounts <<'P'
import sqlite3, sys
base = sqlite3.connect(sys.argv[1])
base.execute("create table a (id integer primary key, n integer, text)")
base.executemany("insert into a values (?, 100, ?)", [(i, "x" * (i * 37 % 900)) for i in range(300)])
base.commit()
P
  barrier accounts-made
  $PYTHON - $D/accounts $ROLE $seconds <<'P' || fail "sqlite"
import random, sqlite3, sys, time
sys.path.append("/share")
from crowd import crowd
name, me, until = sys.argv[1], int(sys.argv[2]), time.monotonic() + float(sys.argv[3])
def work(who):
    pick, n = random.Random(who), 0
    while time.monotonic() < until:
        base = sqlite3.connect(name, timeout=60, isolation_level=None)
        base.execute("pragma journal_mode=" + pick.choice(["delete", "truncate", "persist"]))
        base.execute("pragma cache_size=" + pick.choice(["10", "2000"]))
        for _ in range(pick.randrange(1, 12)):
            if pick.random() < .4:
                total, = base.execute("select sum(n) from a").fetchone()
                assert total == 30000, f"{total} seen"
            else:
                base.execute("begin immediate")
                for _ in range(pick.randrange(1, 20)):
                    a, b, much = pick.randrange(300), pick.randrange(300), pick.randrange(50)
                    base.execute("update a set n = n - ?, text = ? where id = ?", (much, "y" * pick.randrange(900), a))
                    base.execute("update a set n = n + ? where id = ?", (much, b))
                base.execute("rollback" if pick.random() < .2 else "commit")
            n += 1
        base.close()
    return n
print("sqlite:", crowd(range(me * 10, me * 10 + 3), work))
P
  barrier accounts-ran
  $PYTHON - $D/accounts >/tmp/accounts <<'P'
import sqlite3, sys
base = sqlite3.connect(sys.argv[1])
print(*base.execute("pragma integrity_check").fetchone(), *base.execute("select sum(n) from a").fetchone())
P
  same "$(cat /tmp/accounts)" "ok 30000" "the accounts"
  barrier accounts-end
}

# Each client writes its half of one file in blocks that can be checked, and checks them; then both check the other one's.
fios() {
  local direct
  # fio FILE HALF DIRECT OPTION...
  checked() {
    local file=$1 half=$2 direct=$3; shift 3
    fio --name=half$half --filename=$file --offset=$((half * 24))m --size=24m --bs=$((direct ? 16 : 6))k --direct=$direct --ioengine=psync \
      --verify=crc32c --verify_fatal=1 --randseed=$half --fallocate=none --output=/tmp/fio "$@" >/tmp/fio.said 2>&1 ||
      fail "fio $* of half $half, direct=$direct: $(head -5 /tmp/fio.said /tmp/fio)"
  }
  # fio removes a file that is too short.
  [ "$ROLE" = 2 ] || truncate -s 48m $D/fio0 $D/fio1
  barrier fio-made
  for direct in 0 1; do checked $D/fio$direct $((ROLE - 1)) $direct --rw=randwrite --do_verify=1 --end_fsync=1; done
  barrier fio-ran
  # Through a mount of its own: where both write one file without locks, Linux may go on with old pages.
  mount_sluice /mnt/fresh nosharecache
  for direct in 0 1; do checked /mnt/fresh/${D#$M/}/fio$direct $((2 - ROLE)) $direct --rw=read; done
  umount_sluice /mnt/fresh
  barrier fio-end
}

# python's own small database, under a lock.
dbms() {
  $PYTHON - $D/dbm $ROLE $seconds <<'P' || fail "dbm"
import dbm.dumb, fcntl, os, random, sys, time
sys.path.append("/share")
from crowd import crowd
name, me, until = sys.argv[1], int(sys.argv[2]), time.monotonic() + float(sys.argv[3])
def work(who):
    pick, counts = random.Random(who), [0] * 20
    while time.monotonic() < until:
        with open(name + ".lock", "a") as lock:
            fcntl.lockf(lock, fcntl.LOCK_EX)
            with dbm.dumb.open(name, "c") as base:
                for _ in range(pick.randrange(1, 5)):
                    i = pick.randrange(20); key = f"{who}.{i}"
                    seen = base.get(key.encode(), b"0").split(b" ")[0]
                    assert int(seen) == counts[i], f"{key} is {seen}, not {counts[i]}"
                    counts[i] += 1
                    base[key] = f"{counts[i]} {'x' * pick.randrange(300)}"
            with open(name + ".dat", "rb") as file: os.fsync(file.fileno())
    return sum(counts)
print("dbm:", crowd(range(me * 10, me * 10 + 3), work))
P
  barrier dbm-end
}

# PostgreSQL on one client, killed with its servers, then taken over by the other one.
PG=$(ls -d /usr/lib/postgresql/*/bin 2>/dev/null | tail -1)
as_pg() { setpriv --reuid=postgres --regid=postgres --clear-groups env -i PATH=$PG:/usr/bin:/bin HOME=/tmp LC_ALL=C PGHOST=/tmp PGDATABASE=postgres "$@"; }
PG_OPTIONS="-k /tmp -c listen_addresses= -c shared_buffers=32MB -c max_connections=20 -c checkpoint_timeout=30s -c max_wal_size=64MB"
pg_start() {
  as_pg pg_ctl -D $D/pg/data -w -t 120 -l /tmp/pg.log -o "$PG_OPTIONS" start >/tmp/pg.start 2>&1 ||
    { tail -20 /tmp/pg.log; fail "PostgreSQL does not start"; }
}
pg_right() {
  local sums
  sums=$(as_pg psql -Atc "select (select sum(abalance) from pgbench_accounts) || ' ' || (select sum(bbalance) from pgbench_branches) ||
    ' ' || (select sum(tbalance) from pgbench_tellers) || ' ' || (select coalesce(sum(delta), 0) from pgbench_history)") || fail "psql"
  [ "$(echo $sums | tr ' ' '\n' | sort -u | wc -l)" = 1 ] || fail "pgbench: the sums differ: $sums"
  as_pg pg_amcheck --install-missing --heapallindexed --parent-check -d postgres >/tmp/amcheck 2>&1 || { head -20 /tmp/amcheck; fail "pg_amcheck"; }
  step "PostgreSQL: $(as_pg psql -Atc 'select count(*) from pgbench_history') transactions, sums of $sums"
}
postgres() { local policy; for policy in small,mirrors=2 wide; do postgres_on $policy; done; }
postgres_on() {  # POLICY
  local bench
  if [ "$ROLE" = 1 ]; then
    mkdir $D/pg; reference || policy /programs/pg $1
    chown postgres:postgres $D/pg
    as_pg initdb -k -D $D/pg/data --no-instructions >/tmp/initdb 2>&1 || { cat /tmp/initdb; fail initdb; }
    step initdb
    pg_start
    as_pg pgbench -q -i -s 2 >/tmp/pgbench 2>&1 || { cat /tmp/pgbench; fail "pgbench -i"; }
    step "pgbench"
    as_pg pgbench -n -c 4 -j 2 -T $((seconds * 2)) >/tmp/pgbench 2>&1 & bench=$!
    if ! reference; then sleep 5; host kill ds1; sleep 4; host kill mds; sleep 4; host kill ds2; host kill ds3; fi
    wait $bench || { cat /tmp/pgbench; tail /tmp/pg.log; fail "pgbench"; }
    grep 'tps\|processed\|failed' /tmp/pgbench || true
    ! grep 'ERROR\|PANIC\|FATAL' /tmp/pg.log || fail "PostgreSQL's log"
    pg_right
    # It dies in the middle of its work, twice; the second time the other client takes over.
    as_pg pgbench -n -c 4 -j 2 -T 60 >/tmp/pgbench 2>&1 & bench=$!
    sleep 6; as_pg pg_ctl -D $D/pg/data -m immediate stop >/dev/null
    wait $bench || true
    pg_start; pg_right
    as_pg pgbench -n -c 4 -j 2 -T 60 >/tmp/pgbench 2>&1 & bench=$!
    sleep 6; as_pg pg_ctl -D $D/pg/data -m immediate stop >/dev/null
    wait $bench || true
  fi
  barrier pg-$1
  if [ "$ROLE" = 2 ]; then
    pg_start; pg_right
    as_pg pgbench -n -c 4 -j 2 -T 5 >/tmp/pgbench 2>&1 || { cat /tmp/pgbench; fail "pgbench of the other client"; }
    as_pg pg_ctl -D $D/pg/data -m fast stop >/dev/null || fail "PostgreSQL does not stop"
    as_pg pg_checksums -c -D $D/pg/data >/tmp/checksums 2>&1 || { cat /tmp/checksums; fail "pg_checksums"; }
    ! grep 'ERROR\|PANIC' /tmp/pg.log || fail "PostgreSQL's log"
  fi
  barrier pg-$1-2
  if [ "$ROLE" = 1 ]; then
    pg_start; pg_right; as_pg pg_ctl -D $D/pg/data -m fast stop >/dev/null
    rm -r $D/pg
  fi
  barrier pg-$1-3
}

for what in git_pushed git_worktrees rsynced tarred accounts fios dbms postgres; do
  step "$what"
  case $what in
    git_*) has git || continue; D=$G/programs ;;
    rsynced) has rsync || continue ;;
    fios) has fio || continue ;;
    postgres) [ -n "$PG" ] || { step "NOT RUN: PostgreSQL is not installed"; continue; } ;;
  esac
  $what
  cd /; D=$M/programs
done
umount_sluice $G
umount_sluice
echo PASS
