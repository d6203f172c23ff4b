# The client of bench-client: it fills every server's directory, and then in each round reads files back from servers that
# were just started, with nothing in anybody's memory. Lines that begin with SAMPLE are for the runner.
set -eu
. /share/lib.sh

turn=0
# servers ORDER...: their answer is in ANSWER.
servers() {
  turn=$((turn + 1))
  host post "order$turn" "$*" >/dev/null
  ANSWER=$(host await "done$turn")
}
# A peer is a server and a directory there.
server_of() { case $1 in kernel) echo kernel ;; *) echo sluice ;; esac; }
folder_of() { case $1 in inline) echo "$M/inline" ;; *) echo "$M/cold" ;; esac; }
begin() { drop_caches; servers start "$(server_of "$1")"; mount_sluice; }
finish() { umount_sluice; left; servers stop "$(server_of "$1")"; drop_caches; }
# The kernel may end a mount after umount: it returns thousands of delegations one by one, and without their server it would for ever.
left() {
  local try
  for try in $(seq 6000); do
    [ "$(wc -l </proc/fs/nfsfs/volumes)" -gt 1 ] || return 0
    sleep 0.1
  done
  fail "the mount does not end: $(cat /proc/fs/nfsfs/volumes)"
}
# measure ROUND PEER ROW ARGUMENTS...
measure() {
  local round=$1 peer=$2 row=$3 server client said; shift 3
  servers busy; server=$ANSWER; client=$(busy)
  said=$("$BENCH" client-load "$@")
  client=$(($(busy) - client)); servers busy; server=$((ANSWER - server))
  printf 'SAMPLE\t%s\t%s\t%s\t%s\t%s\t%s\n' "$round" "$peer" "$row" "$server" "$client" "$said"
}

# tree: a tree of source files, of which nobody knows anything whenever something else is done with it.
tree() {
  local part
  for part in unpack list search remove; do
    begin "$peer"
    measure "$round" "$peer" $part tree $part "$(folder_of "$peer")" --files "$TREE_FILES"
    [ $part != list ] || measure "$round" "$peer" again tree again "$(folder_of "$peer")" --files "$TREE_FILES"
    [ "${OPS-}" = "" ] || op_table
    finish "$peer"
  done
}

for peer in $PEERS; do
  step "$peer: $((FILES - PREPARED)) of $FILES files are written"
  begin "$peer"
  folder=$(folder_of "$peer")
  mkdir -p "$folder"
  [ "$peer" != inline ] || servers inline inline
  [ "$FILES" = "$PREPARED" ] || measure 0 "$peer" fill fill "$folder" --from "$PREPARED" --files "$FILES" --tasks "$TASKS"
  case "$peer $ROWS" in inline*) ;; *burst*) "$BENCH" client-load big "$folder" --mib "$BIG_MIB" ;; esac
  [ "$peer" = kernel ] || uses_layouts || fail "$peer is mounted without layouts"
  finish "$peer"
done
for round in $(seq "$ROUNDS"); do
  # Who begins changes from round to round.
  turned=$(echo $PEERS $PEERS | awk -v from=$((round - 1)) -v n="$(echo $PEERS | wc -w)" '{ for (i = 1; i <= n; i++) printf "%s ", $(from % n + i) }')
  for peer in $turned; do
    for row in $ROWS; do
      [ "$peer $row" != "inline burst" ] || continue
      step "round $round: $peer, $row"
      [ "$row" != tree ] || { tree; continue; }
      begin "$peer"
      case $row in
        cold) measure "$round" "$peer" cold read "$(folder_of "$peer")" --files "$FILES" --reads "$READS" --tasks "$TASKS" --seed "$round" ;;
        burst) measure "$round" "$peer" burst burst "$(folder_of "$peer")" --writers "$WRITERS" --mib "$BURST_MIB" --readers "$READERS" --seed "$round" ;;
      esac
      [ "${OPS-}" = "" ] || op_table
      finish "$peer"
    done
  done
done
servers end
echo PASS
