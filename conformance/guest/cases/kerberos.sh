# Kerberos: mounted with sec=krb5, krb5i and krb5p; who has no ticket is nobody, and who comes without one is not let in. Files are given
# away by name.
set -eu
. /share/lib.sh

for command in rpc.gssd kinit; do
  command -v $command >/dev/null || fail "this machine has no $command: install nfs-common and krb5-user"
done
dir=$(host kerberos)
export KRB5_CONFIG=/share/kerberos/krb5.conf
NAME=nas.sluice.test
echo "$SERVER $NAME" >>/etc/hosts
modprobe rpcsec_gss_krb5
mkdir -p /run/rpc_pipefs; mountpoint -q /run/rpc_pipefs || mount -t rpc_pipefs sunrpc /run/rpc_pipefs
rpc.gssd -f -p /run/rpc_pipefs -k /share/kerberos/client.keytab 2>/tmp/gssd.log &
sleep 1

# as_user COMMAND...: as games, who has uid 5 on all hosts.
as_user() { setpriv --reuid 5 --regid 60 --clear-groups -- "$@"; }
# Linux remembers for some seconds that there was none.
ticket() { sleep 6; KRB5CCNAME=FILE:/tmp/krb5cc_5 kinit -k -t /share/kerberos/user.keytab games; chown 5:60 /tmp/krb5cc_5; }
no_ticket() { rm -f /tmp/krb5cc_5; }
# mount_by FLAVOUR DIR
mount_by() { mkdir -p "$2"; mount -t nfs -o "vers=$VERS,hard,timeo=100,sec=$1" $NAME:/ "$2" 2>/tmp/mount.error || fail "sec=$1: $(cat /tmp/mount.error)"; }

step "tickets are taken where an export says so, and nothing else"
host fresh 2 --kerberos-keytab "$dir/server.keytab"
mount_by sys $M
mkdir -m 1777 $M/open; mkdir -m 700 $M/private; echo secret >$M/private/secret
umount_sluice
host sluice export set / --sec krb5,krb5i,krb5p >/dev/null
host sluice export list
if timeout 60 mount -t nfs -o "vers=$VERS,soft,retry=0,sec=sys" $NAME:/ $M 2>/tmp/mount.error; then
  ls $M && fail "mounted without a ticket"
  umount $M
fi

for how in krb5 krb5i krb5p; do
  step "sec=$how"
  mount_by $how /mnt/$how
  grep " /mnt/$how " /proc/mounts | grep -q "sec=$how," || fail "another flavour: $(grep /mnt/$how /proc/mounts)"
  d=/mnt/$how/open
  no_ticket
  if as_user touch $d/without 2>/tmp/error; then fail "a file without a ticket"; fi
  # Root comes with its host's ticket, and is nobody.
  touch $d/of-root; same "$(stat -c %u $d/of-root)" 65534 "owner of what root makes"
  if cat /mnt/$how/private/secret 2>/tmp/error; then fail "nobody has read root's file"; fi
  ticket
  as_user sh -c "echo hello >$d/mine-$how; mkdir $d/dir-$how; mv $d/mine-$how $d/dir-$how/moved"
  same "$(stat -c %u $d/dir-$how/moved)" 5 "owner of what the user makes"
  before=$(proxied)
  as_user dd if=/dev/urandom of=$d/large-$how bs=1M count=24 conv=fsync status=none
  sum=$(as_user sha256sum <$d/large-$how); drop_caches
  same "$(as_user sha256sum <$d/large-$how)" "$sum" "what was written"
  for n in $(seq 40); do as_user sh -c "echo $n >$d/dir-$how/$n"; done; drop_caches
  same "$(as_user sh -c "cat $d/dir-$how/[0-9]*" | awk '{ s += $1 } END { print s }')" 820
  case $how in
    krb5) same "$(proxied)" "$before" "bytes through the metadata server" ;;
    *) [ "$(($(proxied) - before))" -ge 25165824 ] || fail "sealed, but its data went in clear" ;;
  esac
done

step "what this host has is under its own ticket, which closes what users opened"
host sluice client list
same "$(host sluice client list --json | json '" ".join(sorted({str(c["machine"]) for c in j}))')" host/client.sluice.test@SLUICE.TEST
opens() { host sluice client list --json | json 'sum(c["opens"] for c in j)'; }
as_user mkdir /mnt/krb5p/open/sealed
host sluice export add /open/sealed --client any --sec krb5p >/dev/null
drop_caches
# The machine's ticket is used with krb5i, which is no good there.
as_user sh -c 'for n in $(seq 20); do echo $n >/mnt/krb5p/open/sealed/$n; done; cat /mnt/krb5p/open/sealed/*' >/dev/null
for try in $(seq 40); do [ "$(opens)" != 0 ] || break; sleep 0.5; done
same "$(opens)" 0 "files that are still open"

step "owners by name"
if command -v nfsidmap >/dev/null && [ -x /sbin/request-key ]; then
  # Of the same name as on the server, with other numbers: only by name it comes to be the server's.
  printf '[General]\nDomain = sluice.test\n[Translation]\nMethod = nsswitch\n' >/etc/idmapd.conf
  sed -i 's/^mail:x:8:8:/mail:x:888:888:/' /etc/passwd; sed -i 's/^mail:x:8:/mail:x:888:/' /etc/group
  echo 'stranger:x:4242:4242::/:/bin/false' >>/etc/passwd
  # Another user here, whose ticket is root's.
  as_root() { setpriv --reuid 4 --regid 65534 --clear-groups -- "$@"; }
  KRB5CCNAME=FILE:/tmp/krb5cc_4 kinit -k -t /share/kerberos/root.keytab root; chown 4 /tmp/krb5cc_4
  for how in krb5 krb5p; do
    f=/mnt/$how/open/named-$how
    as_user touch $f
    as_root chown mail $f; as_root chgrp mail $f
    same "$(stat -c %u:%g $f)" 8:8 "whose it is"
    refused "Invalid argument" as_root chown stranger $f
    as_root $PYTHON /share/acl.py $f A:0:mail@sluice.test:1601ff A:40:games@SLUICE.TEST:120081 A:0:EVERYONE@:120080
    same "$(as_root $PYTHON /share/acl.py $f | cut -d: -f3 | xargs)" "8 60 EVERYONE@" "whom the list is about"
    as_root chown 7:7 $f
    same "$(stat -c %u:%g $f)" 7:7 "who has no name"
  done
else
  echo "NOT TRIED: this machine has no nfsidmap (nfs-common) or no request-key (keyutils)"
fi

step "the metadata server dies, and with it what it knew of tickets"
host kill mds
for how in krb5 krb5i krb5p; do
  as_user sh -c "echo again >/mnt/$how/open/dir-$how/again"; drop_caches
  same "$(as_user cat /mnt/$how/open/dir-$how/again)" again
done
as_user sha256sum </mnt/krb5p/open/large-krb5p >/dev/null

step "eight at once"
for n in $(seq 8); do
  as_user sh -c "for k in \$(seq 60); do echo \$k >/mnt/krb5p/open/dir-krb5p/$n-\$k; done" &
done
wait $(jobs -p | tail -8)
same "$(ls /mnt/krb5p/open/dir-krb5p | grep -c -- -)" 480

step "a ticket that is given up is good no more"
umount /mnt/krb5p /mnt/krb5i /mnt/krb5
no_ticket
mount_by krb5p /mnt/krb5p
if as_user touch /mnt/krb5p/open/later 2>/tmp/error; then fail "a file without a ticket"; fi
umount /mnt/krb5p

step "each of several connections is bound with the host's ticket, after the metadata server died, too"
ticket
mount_by krb5i,nconnect=4 /mnt/krb5i
many() { for n in $(seq 8); do as_user sh -c "for k in \$(seq 30); do mkdir /mnt/krb5i/open/dir-krb5i/$1-$n-\$k || exit 1; done" & done; wait $(jobs -p | tail -8); }
many first
watcher=$(watch_for 120)
( sleep 1; host kill mds ) & killer=$!
many again
wait $killer; kill $watcher
same "$(as_user ls /mnt/krb5i/open/dir-krb5i | grep -c -e -)" 480 "directories, none made twice"
same "$(ss -tn state established "dport = :2049" | grep -c 2049)" 4 "connections"
umount /mnt/krb5i

step "sec= is found out where it is not said"
mkdir -p /mnt/found; mount -t nfs -o "vers=$VERS,hard,timeo=100" $NAME:/ /mnt/found
grep " /mnt/found " /proc/mounts | grep -q "sec=krb5," || fail "$(grep /mnt/found /proc/mounts)"
umount /mnt/found

if [ -e /etc/idmapd.conf ] && command -v nfsidmap >/dev/null && [ -x /sbin/request-key ]; then
  step "owners are told by name to who has a ticket"
  host fresh 2 --kerberos-keytab "$dir/server.keytab" --tell-names tickets
  mount_by sys $M
  mkdir -m 1777 $M/told; touch $M/told/mail $M/told/nobodys
  chown 8:8 $M/told/mail; chown 4243:4243 $M/told/nobodys
  host sluice export set / --sec sys,krb5,krb5p >/dev/null
  for how in krb5 krb5p; do
    mount_by $how /mnt/$how
    # Other numbers here than on the server.
    same "$(stat -c '%u:%g %U:%G' /mnt/$how/told/mail)" "888:888 mail:mail" "whose it is here"
    same "$(ls -l /mnt/$how/told | awk '/ mail$/ { print $3 ":" $4 }')" mail:mail "in a listing"
    same "$(stat -c %u:%g /mnt/$how/told/nobodys)" 4243:4243 "who has no name on the server"
    umount /mnt/$how
  done
  same "$(stat -c %u:%g $M/told/mail)" 8:8 "without a ticket"
  umount_sluice
fi
