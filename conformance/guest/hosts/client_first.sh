. /share/client.sh
: >/etc/fstab
chapter
io write $M/first$me 24m $me --sync
mkdir $M/many$me
for n in $(seq 20); do echo $n >$M/many$me/$n; done
sync
echo written
