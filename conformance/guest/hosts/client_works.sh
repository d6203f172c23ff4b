. /share/client.sh
: >/etc/fstab
boot
mkdir $M/works$me $M/works$me/files
for n in 1 2 3; do io write $M/works$me/files/f$n 1m $n --sync; done
workers=()
io journal $M/works$me/journal /tmp/journal --seconds 90 & workers+=($!)
io reread $M/works$me/files --count 3 --seconds 90 & workers+=($!)
io names $M/works$me/names --seconds 90 & workers+=($!)
touch /share/working$me
until [ -e /share/over ]; do sleep 0.5; done
for worker in "${workers[@]}"; do wait $worker || fail "an application saw an error"; done
echo 3 >/proc/sys/vm/drop_caches
io check-journal $M/works$me/journal /tmp/journal
umount $M
