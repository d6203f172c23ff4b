# Writes until the power fails; what was synced is noted where it stays.
. /share/client.sh
: >/etc/fstab
boot
io journal $M/journal$me /share/journal$me --seconds 600 &
until [ "$(wc -l 2>/dev/null </share/journal$me || echo 0)" -gt 50 ]; do sleep 0.2; done
touch /share/dying$me
wait
