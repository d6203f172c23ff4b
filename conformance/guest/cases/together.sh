# What processes of two clients do with the same files without thinking of it: a database, a mail folder, a lock file that is made
# with O_EXCL, a log that is cut off while others append to it, threads that write one log, pages of a mapped file, a file that is
# replaced under its readers.
set -eu
. /share/lib.sh

mount_sluice
D=$M/together
if [ "$ROLE" = 1 ]; then mkdir $D; fi
barrier made

ALL="database mail lockfile rotated threads mapped replaced"
together() { $PYTHON /share/together.py "$1" "$D/$1-$round-$where" "$ROLE" $seconds ${2-} || fail "$1"; }
begin() {
  if [ "$ROLE" = 1 ]; then
    mkdir "$D/$1-$round-$where"
    [ $where = shipped ] || policy "/together/$1-$round-$where" wide --inline off
    together $1 begin
  fi
}
for round in $(seq $(((ROUNDS + 4) / 5))); do
  # Small files in the metadata, as shipped, and all of them in stripes at data servers.
  seconds=3
  for where in shipped wide; do
    for what in $ALL; do
      step "round $round, $where: $what"
      begin $what
      barrier "begin-$what-$round-$where"
      together $what
      barrier "ran-$what-$round-$where"
      together $what end
      barrier "end-$what-$round-$where"
    done
  done

  # Not data servers: close(2) of Linux does not wait for what it has to write again when one dies (fsync does).
  step "round $round: all at once, and the metadata server dies"
  where=killed seconds=25
  for what in $ALL; do begin $what; done
  barrier "begin-$round"
  workers=()
  for what in $ALL; do together $what & workers+=($!); done
  if [ "$ROLE" = 1 ]; then
    for _ in 1 2; do sleep 7; host kill mds; done
  fi
  for worker in "${workers[@]}"; do wait $worker || fail "an application saw an error"; done
  barrier "ran-$round"
  for what in $ALL; do together $what end; done
  barrier "end-$round"
done
cd /; umount_sluice
echo PASS
