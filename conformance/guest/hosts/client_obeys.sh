. /share/client.sh
: >/etc/fstab
# What a client takes to notice that a data server does not answer: a minute, but who waits for a test?
modprobe nfs_layout_flexfiles
echo 50 >/sys/module/nfs_layout_flexfiles/parameters/dataserver_timeo
chapter
touch /share/obeys$me
# obey: scripts as they come, with what they said, until there is an empty one.
for order in $(seq 1000); do
  until [ -e /share/order$me-$order ]; do sleep 0.1; done
  [ -s /share/order$me-$order ] || break
  ( set -eu; . /share/order$me-$order ) >/share/said$me-$order 2>&1 && status=0 || status=$?
  echo $status >/share/status.$me; mv /share/status.$me /share/ended$me-$order
done
umount $M
