#!/.guest/busybox sh
# PID 1 after switch_root, so that the kernel's modprobe and request-key upcalls see the real root.
BUSYBOX=/.guest/busybox
$BUSYBOX echo "GUEST-UP: $($BUSYBOX cut -d' ' -f1 /proc/uptime)" >/dev/console
$BUSYBOX echo "GUEST-KERNEL: $($BUSYBOX uname -r)" >/dev/console

# The network driver of user-mode-linux gives up for good, and spins, after one packet that the host would not take (`in_error`
# in its vector driver). Closing and opening the device has it work again: for the case this is a network that was away for
# some seconds. It says so on the console, and the suite repeats that.
watch_driver() {
  sent=/sys/class/net/vec0/statistics/tx_packets
  idle=0
  while $BUSYBOX sleep 2; do
    before=$($BUSYBOX cat $sent)
    $BUSYBOX ping -c 1 -W 1 @host@ >/dev/null 2>&1
    idle=$((idle + 1))
    [ "$($BUSYBOX cat $sent)" = "$before" ] || idle=0
    [ $idle -lt 2 ] && continue
    $BUSYBOX ifconfig vec0 down
    $BUSYBOX ifconfig vec0 "$GUEST_IP" netmask 255.255.255.0 up
    $BUSYBOX echo "GUEST-NETWORK: the driver of user-mode-linux had given up, and was started again" >/dev/console
    idle=0
  done
}
if [ -e /sys/class/net/vec0 ] && [ -n "$GUEST_IP" ]; then watch_driver & fi

/bin/bash /job/run </dev/null >$OUT 2>&1
status=$?
$BUSYBOX sync
$BUSYBOX echo "GUEST-STATUS: $status" >/dev/console
$BUSYBOX poweroff -f
$BUSYBOX sleep 60
