# xfstests: the quick tests of every file system and of NFS, as its own `check` runs them on two directories of the server.
set -eu
. /share/external.sh

# Seconds that one test may take; most of the quick ones take a minute or two, on a busy host seven, and generic/155 writes
# 3 GiB in direct writes of 4 KiB.
LIMIT=1800

# What tests need to be there: users, and folders for the two mounts. An "x" for the password would send `su` to a shadow
# entry that there is not.
for user in fsgqa:64001 fsgqa2:64002 123456-fsgqa:64003; do
  echo "${user%:*}:*:${user#*:}:${user#*:}::/:/bin/bash" >>/etc/passwd
  echo "${user%:*}:x:${user#*:}:" >>/etc/group
done
mkdir /mnt/test /mnt/scratch /tmp/results
[ -e /dev/fd ] || ln -s /proc/self/fd /dev/fd
mount_sluice
# Some tests take all that is free.
free=$(df --output=avail -B1G $M | tail -n 1)
[ "$free" -le 16 ] || fail "$free GiB are free, and tests fill them: set TMPDIR to a file system of a few GiB"
mkdir $M/test $M/scratch
umount_sluice

# Caches of their own, since some tests mount the one with options that the other does not have.
export FSTYP=nfs NFS_MOUNT_OPTIONS="-o vers=$VERS,hard,timeo=100,nosharecache" RESULT_BASE=/tmp/results
export TEST_DEV=$SERVER:/test TEST_DIR=/mnt/test SCRATCH_DEV=$SERVER:/scratch SCRATCH_MNT=/mnt/scratch
cd "$SUITE"

chosen() {
  local group test
  for group in generic nfs; do
    for test in $(awk '/^[0-9]/ && / quick( |$)/ { print $1 }' "tests/$group/group.list"); do
      ! wanted "$group/$test" || echo "$group/$test"
    done
  done
}
# A test's line is not ended before the test is: one that is there for too long is stuck. Its processes are on a mount.
watch_over() {
  local test last="" since=0
  while sleep 5; do
    test=$(tail -n 1 /tmp/said | grep -oE '^(generic|nfs)/[0-9]+') || continue
    [ "$test" = "$last" ] || { last=$test; since=$SECONDS; }
    [ $((SECONDS - since)) -gt $LIMIT ] || continue
    echo "$test took more than $LIMIT s" >>/tmp/stuck
    ps axo pid,stat,wchan:30,args | tail -n 15
    # The test itself first: it must not go on with what comes after the program that is stuck.
    pkill -KILL -f "tests/$test( |;|\$)" || true
    fuser -skm /mnt/test /mnt/scratch || true
  done
}
# One line of `check` for each test, and below it what was not as it should be.
verdicts() {
  awk '
    function tell() {
      if (code == "") return
      gsub(/[\t\r]/, " ", words); gsub(/  +/, " ", words)
      printf "RESULT\t%s\t%s\t%s\n", code, result, substr(words, 1, 300); fflush(); code = ""
    }
    /^(generic|nfs)\/[0-9]+ / {
      tell(); code = $1; words = $0; sub(/^[^ ]+ +/, "", words)
      result = words ~ /^\[not run\]/ ? "skip" : words ~ /^[0-9]+s$/ ? "pass" : "fail"
      sub(/^\[not run\] /, "", words)
      print; if (result != "fail") tell(); next
    }
    /^(Ran|Failures|Not run|Passed|Failed):/ { tell() }
    { print; fflush(); if (/^ +[-+][^-+]/) words = words " " $0 }
    END { tell() }
  '
}

tests=$(chosen)
[ -n "$tests" ] || fail "no quick test is called $ONLY"
: >/tmp/said
watch_over &
watcher=$!
DIFF_LENGTH=16 ./check $tests 2>&1 | tee /tmp/said | verdicts || true
kill $watcher
[ ! -e /tmp/stuck ] || cat /tmp/stuck
cd /
for dir in /mnt/test /mnt/scratch; do ! mountpoint -q $dir || umount_sluice $dir; done
