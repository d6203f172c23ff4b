# What small files cost a user: untar, copy and remove, beside the guest's own memory; and what they cost the servers.
set -eu
. /share/lib.sh

FILES=${FILES:-1000}

mount_sluice
work() { reference && echo 0 || host status | json "$1"; }
costs() {  # the counters of all servers: transactions groups orders flushes
  work '"%d %d %d %d" % (j["mds"]["transactions"], j["mds"]["transaction_groups"], j["mds"]["orders"], sum(d["flushes"] for d in j["data_servers"]))'
}
per_file() {  # NAME SECONDS BEFORE: rates and costs of one phase
  metric "$1_files_per_second" "$(calc "$FILES / $2")"
  reference && return
  sleep 3                         # data servers tell their counters with their heartbeats
  set -- "$1" $3 $(costs)
  metric "$1_transactions_per_file" "$(calc "($6 - $2) / $FILES")"
  metric "$1_store_flushes_per_file" "$(calc "($7 - $3) / $FILES")"
  metric "$1_calls_per_file" "$(calc "($8 - $4) / $FILES")"
  metric "$1_data_flushes_per_file" "$(calc "($9 - $5) / $FILES")"
}

step "an archive of $FILES files"
$PYTHON - "$FILES" <<'PY'
import io, sys, tarfile
with tarfile.open("/tmp/small.tar", "w") as archive:
    for number in range(int(sys.argv[1])):
        entry = tarfile.TarInfo("tree/%02d/file%05d" % (number // 100, number))
        entry.size, entry.mtime, entry.mode = 1000 + number * 37 % 7000, 1000000000 + number, 0o640
        archive.addfile(entry, io.BytesIO(bytes([number % 251]) * entry.size))
PY

step "untar"
before=$(costs); start=$(now)
tar -xf /tmp/small.tar -C $M
took=$(elapsed $start); per_file untar "$took" "$before"

step "copy"
before=$(costs); start=$(now)
cp -r $M/tree $M/copy
took=$(elapsed $start); per_file copy "$took" "$before"

step "the same as in memory"
mkdir /tmp/here; tar -xf /tmp/small.tar -C /tmp/here
umount_sluice; mount_sluice
diff -r /tmp/here/tree $M/tree || fail "the archive came out differently"
diff -r /tmp/here/tree $M/copy || fail "the copy differs"
times() { (cd "$1" && find . -type f | sort | xargs stat -c '%n %Y %a %s'); }
[ "$(times /tmp/here/tree)" = "$(times $M/tree)" ] || fail "times or modes are not those of the archive"
same "$(proxied)" 0 "proxied bytes"

step "remove"
before=$(costs); start=$(now)
rm -r $M/tree $M/copy
took=$(elapsed $start); FILES=$((FILES * 2)); per_file remove "$took" "$before"
umount_sluice
echo PASS
