# tree_work DIR: makes a tree in DIR, the same wherever DIR is. Sourced by the differential cases.

# One line per entry: type, mode, owner, size, links, target; the time where `touch` or `tar` set it. A directory's size and
# time are the file system's own.
tree_list() {  # DIR
  (cd "$1" && find . -mindepth 1 \
    \( -type d -printf '%p d %m %U:%G %n\n' \) -o \( -type l -printf '%p l %l\n' \) -o \
    -printf '%p %y %m %U:%G %s %n %T@\n') | LC_ALL=C sort
}
# The same without times, for what a program wrote just now.
timeless() { awk 'NF == 7 { $7 = "" } { print }'; }

tree_sources() {  # DIR ARCHIVE
  local dir=$1 from=$2
  mkdir "$dir/sources"
  case $from in
    *.tar.*) tar -xf "$from" -C "$dir/sources" --no-same-owner ;;
    *) cp -a "$from/." "$dir/sources/" ;;
  esac
  cp -a "$dir/sources" "$dir/copy"
  mv "$dir/copy" "$dir/moved"
  # A part is changed, renamed, linked and removed by rule.
  (cd "$dir/moved" && find . -type f -name '*.h' | LC_ALL=C sort | awk 'NR % 7 == 0' | head -200 | while read -r f; do
    echo "/* changed */" >>"$f"; touch -d '2020-01-01 UTC' "$f"; chmod 640 "$f"; mv "$f" "$f.renamed"; ln "$f.renamed" "$f.linked"
  done)
  find "$dir/moved" -type f -name 'Kconfig*' -delete
  find "$dir/moved" -mindepth 1 -type d -empty -delete
}

tree_git() {  # DIR
  local dir=$1
  export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@example GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@example
  export GIT_AUTHOR_DATE='2020-01-01T00:00:00Z' GIT_COMMITTER_DATE='2020-01-01T00:00:00Z' GIT_CONFIG_NOSYSTEM=1 HOME=/tmp
  git init -q --bare -b main "$dir/bare.git"
  git clone -q "$dir/bare.git" "$dir/work" 2>/dev/null
  (cd "$dir/work"
    git symbolic-ref HEAD refs/heads/main
    for n in $(seq 30); do
      mkdir -p "d$((n % 5))"; seq $((n * 100)) >"d$((n % 5))/f$n"; git add -A; git commit -qm "change $n"
    done
    git push -q origin main
    git checkout -q -b side HEAD~10; seq 50 >side; git add side; git commit -qm side
    git checkout -q main; git merge -q -m merge side; git push -q origin main)
  git clone -q "$dir/bare.git" "$dir/clone"
  (cd "$dir/clone" && git checkout -q HEAD~5 && git checkout -q main && git gc -q --aggressive && git fsck --strict >/dev/null 2>&1) ||
    fail "git in $dir"
  (cd "$dir/clone" && git status --porcelain | grep -q . && fail "git sees changes in $dir"; git rev-parse HEAD) || true
}

tree_sqlite() {  # DIR
  $PYTHON - "$1/base.db" <<'P'
import os, sqlite3, sys
for mode in ("DELETE", "TRUNCATE", "PERSIST"):
    base = sqlite3.connect(sys.argv[1], timeout=60)
    base.execute(f"PRAGMA journal_mode={mode}")
    base.execute("CREATE TABLE IF NOT EXISTS t (id INTEGER PRIMARY KEY, body BLOB)")
    for turn in range(10):
        with base:
            base.executemany("INSERT INTO t (body) VALUES (?)", [(bytes([turn]) * (100 + 37 * n % 4000),) for n in range(200)])
        with base:
            base.execute("DELETE FROM t WHERE id % 7 = ?", (turn % 7,))
    base.close()
# Two processes take turns under sqlite's own locks.
children = []
for _ in range(2):
    child = os.fork()
    if child == 0:
        base = sqlite3.connect(sys.argv[1], timeout=60)
        for _ in range(50):
            with base: base.execute("INSERT INTO t (body) VALUES (x'ff')")
        os._exit(0)
    children.append(child)
for child in children:
    if os.waitpid(child, 0)[1]: print("FAIL a sqlite writer"); sys.exit(1)
base = sqlite3.connect(sys.argv[1])
verdict = base.execute("PRAGMA integrity_check").fetchone()[0]
count = base.execute("SELECT count(*) FROM t WHERE body = x'ff'").fetchone()[0]
if verdict != "ok" or count != 100: print("FAIL sqlite:", verdict, count); sys.exit(1)
print("rows", base.execute("SELECT count(*), sum(length(body)) FROM t").fetchone())
P
}

# Readers hold a file open while writers rename new ones over it: each reader sees one whole version.
tree_rename_over() {  # DIR
  $PYTHON - "$1/current" <<'P'
import os, sys, time
path = sys.argv[1]
def put(version):
    with open(path + ".new", "wb") as file: file.write(version * 100000)
    os.rename(path + ".new", path)
put(b"0")
held = open(path, "rb")
readers = []
for _ in range(3):
    child = os.fork()
    if child == 0:
        end = time.monotonic() + 3
        while time.monotonic() < end:
            with open(path, "rb") as file:
                data = file.read(50000); time.sleep(0.002); data += file.read()
            if len(data) != 100000 or len(set(data)) != 1: os._exit(1)
        os._exit(0)
    readers.append(child)
for turn in range(100):
    put(bytes([65 + turn % 26])); time.sleep(0.02)
for child in readers:
    if os.waitpid(child, 0)[1]: print("FAIL a reader saw a mixture of versions, or an error"); sys.exit(1)
if held.read() != b"0" * 100000: print("FAIL the version held open since the start"); sys.exit(1)
P
}
