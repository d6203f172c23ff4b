. /share/client.sh
: >/etc/fstab
boot
io verify $M/first$me 24m $me --exact
[ "$(cat $M/many$me/* | sort -n | tail -1)" = 20 ] || fail "files are gone"
io check-journal $M/journal$me /share/journal$me
io write $M/again$me 4m 9 --sync
io verify $M/again$me 4m 9 --exact --direct
ls -l $M
umount $M
