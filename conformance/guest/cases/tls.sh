# RPC with TLS: mounted with xprtsec=, data goes to data servers under it; where it is demanded, nothing goes in clear.
set -eu
. /share/lib.sh

# The kernel leaves handshakes to a daemon, which distributions package as ktls-utils.
command -v tlshd >/dev/null || fail "this machine has no tlshd: install ktls-utils"
dir=$(host certificates)
certificates=/share/certificates

# as NAME: shakes hands with that certificate.
as() {
  [ ! -s /run/tlshd.pid ] || kill "$(cat /run/tlshd.pid)"
  mkdir -p /etc/tlshd
  for file in "$1.pem" "$1.key" ca.pem; do install -m 600 "$certificates/$file" "/etc/tlshd/$file"; done
  cat >/etc/tlshd.conf <<CONF
[debug]
loglevel=0
tls=0
nl=0
[authenticate]
[authenticate.client]
x509.truststore=/etc/tlshd/ca.pem
x509.certificate=/etc/tlshd/$1.pem
x509.private_key=/etc/tlshd/$1.key
CONF
  tlshd -s -c /etc/tlshd.conf 2>/tmp/tlshd.log & echo $! >/run/tlshd.pid
  sleep 2
}
modprobe tls
# servers WHAT [OPTION...]: new ones, of whose clients that is demanded.
servers() {
  local what=$1; shift
  host fresh 4 --tls-certificate "$dir/server.pem" --tls-key "$dir/server.key" --tls-clients "$dir/ca.pem" --tls "$what" "$@"
}
# use DIR: some data by way of layouts, and what a user does; a copy is made by the data servers.
use() {
  io write "$1/large" 64M 3; cat "$1/large" >"$1/copy"; drop_caches; io verify "$1/copy" 64M 3
  mkdir "$1/d"; for n in $(seq 50); do echo "$n" >"$1/d/$n"; done; drop_caches
  same "$(cat "$1"/d/* | awk '{ s += $1 } END { print s }')" 1275
  cp "$1/large" "$1/copied"; drop_caches; io verify "$1/copied" 64M 3
  rm -r "$1/d" "$1/large" "$1/copy" "$1/copied"
}

as client
step "offered: mounted with tls, and in clear"
servers offer
# use_layouts HOW: mounted so, it is used, and nothing goes through the metadata server.
use_layouts() {
  local before
  mount_sluice $M "xprtsec=$1"
  before=$(proxied)
  use $M
  uses_layouts || fail "no layouts with xprtsec=$1"
  same "$(proxied)" "$before" "bytes through the metadata server with xprtsec=$1"
  umount_sluice
}
for how in tls mtls none; do use_layouts $how; done

step "exports decide: what one wants is refused to who has less, at once, and its data is under it, too"
mount_sluice $M xprtsec=none
mkdir $M/plain $M/secret $M/certified; chmod 777 $M/*
umount_sluice
host sluice export remove / --client any >/dev/null
host sluice export add /plain --client any --squash none >/dev/null
host sluice export add /secret --client any --squash none --xprtsec tls >/dev/null
host sluice export add /certified --client any --squash none --xprtsec mtls >/dev/null
# enters DIR HOW: it is mounted so, and used by layouts, nothing through the metadata server.
enters() {
  local before
  mount -t nfs -o "vers=$VERS,xprtsec=$2" "$SERVER:/$1" $M || fail "/$1 with xprtsec=$2"
  before=$(proxied)
  use $M
  uses_layouts && same "$(proxied)" "$before" "bytes through the metadata server: /$1 with xprtsec=$2"
  umount_sluice
}
# refused DIR HOW
refused() {
  local began=$SECONDS
  if timeout 60 mount -t nfs -o "vers=$VERS,xprtsec=$2" "$SERVER:/$1" $M 2>/tmp/mount.error; then fail "/$1 is mounted with xprtsec=$2"; fi
  [ $((SECONDS - began)) -lt 20 ] || fail "it took $((SECONDS - began)) s to refuse /$1 with xprtsec=$2"
  echo "  $(cat /tmp/mount.error)"
}
for how in none tls mtls; do enters plain $how; done
for how in tls mtls; do enters secret $how; done
enters certified mtls
refused secret none; refused certified none
refused certified tls
mount -t nfs -o "vers=$VERS,xprtsec=none" "$SERVER:/plain" $M
echo seen >$M/f
host sluice export set /plain --xprtsec tls >/dev/null
if timeout 20 touch $M/g 2>/tmp/touch.error; then fail "it writes in clear still"; fi
grep -q "not permitted" /tmp/touch.error || fail "$(cat /tmp/touch.error)"
umount_sluice

step "demanded: mounted with tls; in clear nothing is to be had"
servers require
use_layouts tls
if timeout 60 mount -t nfs -o "vers=$VERS,soft,retry=0,timeo=50,retrans=1,xprtsec=none" "$SERVER:/" $M 2>/tmp/mount.error; then
  ls $M && fail "mounted in clear"
fi

step "the servers among themselves do not speak in clear either: data through the metadata server"
servers require --no-layouts
mount_sluice $M xprtsec=tls
use $M
[ "$(proxied)" -gt 64000000 ] || fail "$(proxied) bytes went through the metadata server"
umount_sluice

step "certificates are demanded"
servers mutual
use_layouts mtls
mount_sluice $M xprtsec=mtls
use $M
step "a server dies, and all of them"
io write $M/kept 16M 4
host kill ds1; host kill mds
use $M
for name in mds ds1 ds2 ds3 ds4; do host renew $name; done
use $M
drop_caches; io verify $M/kept 16M 4
umount_sluice

as stranger
if timeout 60 mount -t nfs -o "vers=$VERS,soft,retry=0,timeo=50,retrans=1,xprtsec=mtls" "$SERVER:/" $M 2>/tmp/mount.error; then
  ls $M && fail "a stranger has mounted it"
fi
