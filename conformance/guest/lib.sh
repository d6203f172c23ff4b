# Sourced by every case, inside the guest. What a case is told: ROLE (1 .. GUESTS), SERVER, VERS, STRIPES, LEASE,
# DATA_SERVERS, REFERENCE (plain or pnfs: the server is the Linux kernel's own, and knows no `sluice` commands).
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
PYTHON=/usr/bin/python3; [ -x $PYTHON ] || PYTHON=python3
M=/mnt/nfs

fail() { echo "FAIL $*"; exit 1; }
# Prints what is being done and when, so that a hang shows where.
step() { echo "[$(cut -d' ' -f1 /proc/uptime)] $*"; }
on_error() { echo "FAIL $CASE: status $1 near line $2: ${3%%$'\n'*}"; }
trap 'on_error $? $LINENO "$BASH_COMMAND"' ERR

# host REQUEST: asks the runner (suite/stage.rs lists the requests), prints its answer.
host() {
  local fd answer status
  exec {fd}<>"/dev/tcp/$HOST/$HOST_PORT" || return 1
  printf '%s\n' "$*" >&"$fd"
  answer=$(cat <&"$fd")
  exec {fd}>&-
  status=${answer%%$'\n'*}
  answer=${answer#"$status"}; answer=${answer#$'\n'}
  [ "$status" = 0 ] || { echo "FAIL host $*: $answer" >&2; return 1; }
  [ -z "$answer" ] || printf '%s\n' "$answer"
}
barrier() { host barrier "$1" "$GUESTS" >/dev/null; }
metric() { echo "  $1 = $2 ${3-}"; host metric "$@"; }

# mount_sluice [DIR [OPTIONS]]
mount_sluice() {
  local dir=${1:-$M} options=${2:+,$2} try
  mkdir -p "$dir"
  for try in $(seq 40); do
    mount -t nfs -o "vers=$VERS,hard,timeo=100$options" "$SERVER:/" "$dir" 2>/tmp/mount.error && break
    [ "$try" != 40 ] || fail "cannot mount: $(cat /tmp/mount.error)"
    sleep 0.5
  done
  # Single streams need a read-ahead of more than the kernel's 128 KiB.
  echo 4096 >"/sys/class/bdi/$(mountpoint -d "$dir")/read_ahead_kb"
}
umount_sluice() { umount "${1:-$M}" || fail "cannot umount: $(fuser -vm "${1:-$M}" 2>&1)"; }
drop_caches() { sync; echo 3 >/proc/sys/vm/drop_caches; }
has_42() { [ "$VERS" = 4.2 ]; }
reference() { [ -n "$REFERENCE" ]; }

# policy PATH POLICY [OPTION...]: PATH as the server sees it.
policy() { reference || host policy "$@"; }

# mountstats DIR: the client's own counters of one mount.
mountstats() { awk -v dir="${1:-$M}" '$1 == "device" { mine = ($5 == dir) } mine' /proc/self/mountstats; }
# op_count OPERATION [DIR]: how many of them the client has sent.
op_count() { mountstats "${2-}" | awk -v op="$1:" '$1 == op { n = $2 } END { print n + 0 }'; }
# op_table [DIR]: what the client spent its time on: operation, how many, ms each from sending to reply, ms in all.
op_table() {
  mountstats "${1-}" | awk '$1 ~ /^[A-Z_]+:$/ && $2 > 0 { printf "  %-20s %7d  %7.2f ms  %9.0f ms\n", $1, $2, $8 / $2, $8 }' |
    sort -k5 -nr | head -12
}
# watch_for SECONDS: says what this client waits for if that is still so then. Prints its process, to be ended before.
watch_for() { ( sleep "$1"; stuck ) >&2 & echo $!; }
# stuck: operations and what they came to five seconds later, calls that are not answered, processes and where they are.
stuck() {
  local at
  echo "STUCK: what this client waits for"
  for at in 0 5; do sleep $at; echo "operations, $at s later:"; op_table; done
  mount -t debugfs none /sys/kernel/debug 2>/dev/null || true
  echo "calls:"; cat /sys/kernel/debug/sunrpc/rpc_clnt/*/tasks 2>/dev/null | head -40
  echo "processes:"; ps -eo pid,ppid,stat,time,wchan:32,args | grep -v '\[kworker' | tail -40
  for at in $(ps -eo pid=,stat= | awk '$2 ~ /^D/ { print $1 }'); do echo "$at:"; cat /proc/$at/stack; done
}
uses_layouts() { [ "$REFERENCE" = plain ] || mountstats "${1-}" | grep -q 'pnfs=LAYOUT_FLEX_FILES'; }

# json EXPRESSION: evaluates a python expression over the JSON on standard input, called `j`.
json() { $PYTHON -c 'import json,sys; j=json.load(sys.stdin); print(eval(sys.argv[1]))' "$1"; }
# Bytes that went through the metadata server instead of a data server; files small enough to be inline are no proxying.
proxied() { if reference; then echo 0; else host status | json 'j["mds"]["proxied_bytes"]'; fi; }
# link_bytes N: bytes in both directions on server link N (1: metadata server, n + 1: data server n).
link_bytes() { host traffic | awk -v n="$1" '$1 == n { print $2 + $3 }'; }
# ds_bytes read|written: one figure per data server, in the order of their numbers.
ds_bytes() { host status | json '" ".join(str(d["bytes_'"$1"'"]) for d in sorted(j["data_servers"], key=lambda d: d["id"]))'; }

io() { $PYTHON /share/io.py "$@"; }
# fresh_size FILE: as an opener sees it; `stat` alone may repeat what the client has cached for seconds.
fresh_size() { $PYTHON -c 'import os,sys; print(os.fstat(os.open(sys.argv[1], os.O_RDONLY)).st_size)' "$1"; }
same() { [ "$1" = "$2" ] || fail "${3:-compare}: wanted '$2', found '$1'"; }
# refused MESSAGE COMMAND...: the command must fail with that message.
refused() {
  local wanted=$1 said; shift
  if said=$("$@" 2>&1); then fail "$* succeeded"; fi
  case $said in *"$wanted"*) ;; *) fail "$*: wanted '$wanted', found '$said'" ;; esac
}
now() { cut -d' ' -f1 /proc/uptime; }
# elapsed START: seconds since.
elapsed() { awk -v a="$1" -v b="$(now)" 'BEGIN { print b - a }'; }
# Hundredths of seconds that the machine's processors have worked.
busy() { awk '$1 == "cpu" { print $2 + $3 + $4 + $7 + $8 }' /proc/stat; }
calc() { awk "BEGIN { printf \"%.2f\", $* }"; }
