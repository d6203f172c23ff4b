#!/.guest/busybox sh
# PID 1 after switch_root, so that the kernel's modprobe and request-key upcalls see the real root.
/.guest/busybox echo "GUEST-UP: $(/.guest/busybox cut -d' ' -f1 /proc/uptime)" >/dev/console
/.guest/busybox echo "GUEST-KERNEL: $(/.guest/busybox uname -r)" >/dev/console

# The network driver of user-mode-linux gives up for good, and spins, after one packet that the host would not take (`in_error`
# in its vector driver). Closing and opening the device has it work again: for the case this is a network that was away for
# some seconds. It says so on the console, and the suite repeats that. One bash that starts no program: in user-mode-linux
# each costs tens of milliseconds.
if [ -e /sys/class/net/vec0 ] && [ -n "$GUEST_IP" ]; then
  /bin/bash -s >/dev/null 2>&1 <<'WATCH' &
# Nothing comes from there.
/.guest/busybox mkfifo /run/silence
exec 9<>/run/silence
before= idle=0
while read -r -t 2 -u 9; [ $? -gt 128 ]; do
  # Nobody listens there; on its way it is a packet.
  echo >/dev/udp/@host@/9
  read -r sent </sys/class/net/vec0/statistics/tx_packets
  idle=$((idle + 1))
  [ "$sent" = "$before" ] || idle=0
  before=$sent
  [ $idle -lt 2 ] && continue
  /.guest/busybox ifconfig vec0 down
  /.guest/busybox ifconfig vec0 "$GUEST_IP" netmask 255.255.255.0 up
  echo "GUEST-NETWORK: the driver of user-mode-linux had given up, and was started again" >/dev/console
  idle=0
done
WATCH
fi

/bin/bash /job/run </dev/null >$OUT 2>&1
status=$?
/.guest/busybox sync
/.guest/busybox echo "GUEST-STATUS: $status" >/dev/console
/.guest/busybox poweroff -f
/.guest/busybox sleep 60
