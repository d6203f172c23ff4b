#!/.guest/busybox sh
# PID 1 after switch_root, so that the kernel's modprobe and request-key upcalls see the real root.
/.guest/busybox echo "GUEST-UP: $(/.guest/busybox cut -d' ' -f1 /proc/uptime)" >/dev/console
/.guest/busybox echo "GUEST-KERNEL: $(/.guest/busybox uname -r)" >/dev/console
/bin/bash /job/run </dev/null >$OUT 2>&1
status=$?
/.guest/busybox sync
/.guest/busybox echo "GUEST-STATUS: $status" >/dev/console
/.guest/busybox poweroff -f
/.guest/busybox sleep 60
