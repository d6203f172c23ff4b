# NFSv4 access control lists as Linux has them: shown, set, kept with the mode, obeyed, inherited, marked.
set -eu
. /share/lib.sh

acl() { $PYTHON /share/acl.py "$@"; }
as_user() { setpriv --reuid 1000 --regid 1000 --clear-groups "$@"; }

step "what a mode means, and the same set again"
mount_sluice
mkdir $M/acl; cd $M/acl
echo secret >file; chmod 604 file
same "$(acl file | cut -d: -f1,3 | xargs)" "A:OWNER@ D:GROUP@ A:GROUP@ A:EVERYONE@"
acl file >/tmp/before; acl file =file
acl file | cmp - /tmp/before || fail "another list: $(acl file | xargs)"
same "$(stat -c %a file)" 604

step "a user by number; the mode follows"
acl file A:0:OWNER@:e0187 A:0:1000:20081
same "$(stat -c %a file)" 600
same "$(as_user cat file)" secret
refused "Permission denied" as_user sh -c 'echo more >>file'
refused "Permission denied" setpriv --reuid 1001 --regid 1001 --clear-groups cat file
refused "not permitted" as_user chmod 666 file

step "the list follows the mode"
chmod 660 file; same "$(as_user cat file)" secret
chmod 600 file
refused "Permission denied" as_user cat file
acl file | grep -q '^A:0:1000:20080$' || fail "$(acl file | xargs)"

step "a denial comes first"
acl file D:0:1000:1 A:0:EVERYONE@:20081; same "$(stat -c %a file)" 444
refused "Permission denied" as_user cat file
same "$(setpriv --reuid 1001 --regid 1001 --clear-groups cat file)" secret

step "what is made inherits, whatever the umask"
mkdir team; acl team A:3:OWNER@:e01e7 A:3:1000:e01e7
umask 077; echo shared >team/file; mkdir team/sub; echo deep >team/sub/file; umask 022
if has_42; then
  same "$(as_user cat team/file)" shared
  same "$(as_user cat team/sub/file)" deep
  as_user sh -c 'echo mine >team/sub/mine; rm team/file'
  [ ! -e team/file ] || fail "it is still there"
else
  # A client of 4.1 applies its umask itself.
  refused "Permission denied" as_user cat team/file
fi

step "marks of what came by itself"
dacl() { acl --dacl "$@"; }
mkdir auto; dacl auto 1 A:0:OWNER@:e01e7 A:3:1000:e01a7
echo marked >auto/file; mkdir auto/sub; echo deep >auto/sub/file
# Programs choose the mode of what they make: the flag of that comes to the one that is handed on.
for made in auto/file auto/sub/file; do same "$(dacl $made | grep -v @ | cut -d: -f1-3 | xargs)" "3 A:80:1000" $made; done
same "$(dacl auto/sub | grep -v @ | cut -d: -f1-3 | xargs)" "3 A:80:1000 A:8b:1000"
acl auto/file | grep -q '^A:0:1000:' || fail "the old attribute: $(acl auto/file | xargs)"
dacl auto/file 1 A:0:OWNER@:e01e7 A:80:1000:e0187
same "$(as_user cat auto/file)" marked
cp -a auto/file auto/copy; mv auto/copy auto/sub/copy
chmod 640 auto/file
same "$(dacl auto/file | head -n 1)" 3
same "$(cat auto/sub/copy)" marked
# Who knows of the old attribute alone takes the marks away.
acl auto/sub/file =auto/sub/file
same "$(dacl auto/sub/file | grep -v @ | cut -d: -f1-3 | xargs)" "0 A:0:1000"

step "after a restart and a remount"
cd /; umount_sluice
host restart
mount_sluice; cd $M/acl
acl team | grep -q '^A:3:1000:e01e7$' || fail "$(acl team | xargs)"
same "$(dacl auto | xargs)" "1 A:0:OWNER@:e01e7 A:3:1000:e01a7"
same "$(dacl auto/file | grep -v @ | cut -d: -f1-3 | xargs)" "3 A:80:1000"
refused "Permission denied" as_user cat file
cd $M; rm -r acl; cd /; umount_sluice
echo PASS
