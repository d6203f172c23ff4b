# pjdfstest, one process for all of its tests: what POSIX says of names, permissions, times and errors.
set -eu
. /share/external.sh

# Two users, each alone in its group.
for user in first:64001 second:64002; do
  echo "${user%:*}:x:${user#*:}:${user#*:}::/:/bin/false" >>/etc/passwd
  echo "${user%:*}:x:${user#*:}:" >>/etc/group
done
mkdir /tmp/elsewhere
# configuration ALLOW_REMOUNT
configuration() {
  cat <<C
[features]
posix_fallocate = {}
rename_ctime = {}
utime_now = {}
utimensat = {}
secondary_fs = "/tmp/elsewhere"
[settings]
naptime = 0.02
allow_remount = $1
[dummy_auth]
entries = [["first", "first"], ["second", "second"]]
C
}

# A line for each test, and below it the reason if it is no "ok".
verdicts() {
  awk '
    function tell() { if (code != "") printf "RESULT\t%s\t%s\t%s\n", code, result, words }
    NF == 2 && $2 ~ /^(ok|FAILED|skipped)$/ {
      tell(); code = $1; result = $2 == "ok" ? "pass" : $2 == "FAILED" ? "fail" : "skip"; words = ""; next
    }
    /^\t/ { gsub(/\t/, ""); words = words $0 " "; next }
    /^Summary/ { tell(); code = "" }
  ' "$1"
}

mount_sluice
chmod 755 $M
# run ALLOW_REMOUNT [PATTERN]: the verdicts.
run() {
  configuration "$1" >/tmp/configuration
  NO_COLOR=1 RUST_BACKTRACE=0 "$SUITE/bin/pjdfstest" -c /tmp/configuration -p $M "${@:2}" >/tmp/said 2>&1 || true
  tail -n 3 /tmp/said
  verdicts /tmp/said
}
# The tests that mount the file system read-only come first: kernel clients refuse that for good once a file was removed
# while it was busy, whoever serves.
step "tests that remount"
run true erofs
step "all others"
run false | grep -v 'erofs_.*skip'
cd /; umount_sluice
