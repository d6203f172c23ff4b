# The test of `power_loss` can fail: servers that acknowledge without syncing lose what they promised, and it finds
# the loss, for the metadata server and for the data servers alike. Honest servers pass the same steps.
set -eu
. /share/power.sh

# lose FOLDER [ROLES]: load, power loss, restart, check; its status is the check's: 3 when promises are broken.
lose() {
  local status=0
  rm -f /share/disk.img
  power_on ${2+"$2"} || fail "the servers did not start"
  power_client "$1"
  sleep 2
  host power off server client
  power_on ${2+"$2"} || return 4
  mount_sluice "$M" soft,retrans=2
  timeout -s KILL 90 $PYTHON /share/power.py check "$M/$1" "/share/log-$1" || status=$?
  umount -f "$M" || umount -l "$M"
  host power off server
  return $status
}
expect() {
  local wanted=$1 status=0; shift
  step "$*"
  lose "$@" || status=$?
  same $status "$wanted" "the check of $1 (3: promises are broken)"
}
expect 3 mds-lies mds
expect 3 ds-lie ds
expect 0 honest
echo PASS
