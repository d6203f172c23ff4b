# The Connectathon tests, program by program, so that a failure does not hide what comes after it.
set -eu
. /share/external.sh

# In the folder of the special tests, copied to the mount as the suite does it.
basic() { trial "basic.$1" env NFSTESTDIR=$M/basic "$SUITE/basic/$1" -t; }
special() { local name=$1; shift; cd $M/special; trial "special.$name" "$@"; cd /; }
# Test 9 is about mandatory locks, which the suite leaves out unless they are asked for.
lock() { trial "lock.$1.$2" "$SUITE/lock/$1" -t "$2" $M/lock; }

mount_sluice
PATH=$PATH:.
umask 0

step "basic"
for test in test1 test2 test3 test4 test5 test6 test7 test8 test9; do basic $test; done

step "special"
mkdir $M/special
for test in op_unlk op_ren op_chmod dupreq excltest negseek rename truncate holey nfsidem rewind telldir freesp bigfile bigfile2; do
  cp "$SUITE/special/$test" $M/special
done
special op_unlk env TMPDIR= ./op_unlk
special op_ren env TMPDIR= ./op_ren
special op_chmod env TMPDIR= ./op_chmod
special dupreq ./dupreq 100 testfile
special excltest ./excltest
special negseek ./negseek testfile
special rename ./rename 100
special truncate ./truncate
special holey ./holey
special nfsidem ./nfsidem 50 testdir
special rewind ./rewind
special telldir ./telldir
special freesp ./freesp
special bigfile ./bigfile -s 30 bigfile.data
special bigfile2 ./bigfile2 bigfile2.data

step "lock"
mkdir $M/lock
for size in tlocklfs tlock64; do for number in $(seq 8) $(seq 10 15); do lock $size "$number"; done; done

step "general"
cp -a "$SUITE" /tmp/suite
general() { cd /tmp/suite/general; NFSTESTDIR=$M/general sh runtests; }
trial general general
cd /; umount_sluice
