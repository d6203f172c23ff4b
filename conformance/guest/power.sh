# What the power-loss cases have in common.
. /share/lib.sh

# A machine without power does not reset its connections. A client whose request was received and never answered learns
# of the loss from TCP keepalive alone, after the time-out of the request: for data servers a minute, unless told.
modprobe nfs_layout_flexfiles
echo 50 >/sys/module/nfs_layout_flexfiles/parameters/dataserver_timeo

power() { $PYTHON /share/power.py "$@"; }
# random LOW HIGH
random() { awk -v r=$((RANDOM << 15 | RANDOM)) -v low="$1" -v high="$2" 'BEGIN { printf "%.3f", low + (high - low) * r / 2 ^ 30 }'; }

boots=0
# power_on [ROLES]: boots the servers' guest and waits until they are ready; its status says whether they are.
power_on() {
  boots=$((boots + 1))
  host power on server "boot$boots" "$@"
  [ "$(host await "boot$boots")" = ready ]
}
# power_client FOLDER: boots the client that will die too, and waits until it works.
power_client() {
  host power on client "$1"
  host await "$1" >/dev/null
  until [ -s "/share/log-$1.append" ]; do sleep 0.1; done
}
# healthy: `sluice status` sees every data server, and complains of none.
healthy() {
  local try
  for try in $(seq 100); do
    /share/sluice status --mds "$SERVER" --key /share/cluster.key --json >/tmp/status 2>&1 &&
      well=$(json 'sum(d["health"] == "ok" for d in j["data_servers"])' </tmp/status) &&
      [ "$well" = "$DATA_SERVERS" ] && return
    sleep 0.1
  done
  fail "sluice status is not healthy: $(cat /tmp/status)"
}
# consistent: `sluice meta check` finds no contradiction.
consistent() {
  local start; start=$(now)
  /share/sluice meta check --mds "$SERVER" --key /share/cluster.key >/tmp/checked 2>&1 ||
    fail "sluice meta check after $(elapsed "$start") s: $(cat /tmp/checked)"
}
