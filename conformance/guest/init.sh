#!/bin/busybox sh
# PID 1 of the initramfs: makes the host's / (under an overlay) the guest's root, then hands over to `boot`.
/bin/busybox --install -s /bin
export PATH=/bin:/sbin:/usr/bin:/usr/sbin
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev
for a in $(cat /proc/cmdline); do
  case $a in guest.*=*) k=${a%%=*}; eval "g_${k#guest.}='${a#*=}'";; esac
done
die() { echo "GUEST-DIED: $*" >/dev/console; sync; poweroff -f; sleep 5; reboot -f; }

for m in $(cat /mods/order 2>/dev/null); do insmod /mods/$m 2>/dev/null; done
mkdir -p /host /overlay /new
case $g_mode in
  uml)  OUT=/dev/ttyS0; mount -t hostfs -o / none /host || die hostfs ;;
  qemu) OUT=/dev/hvc0;  mount -t virtiofs hostroot /host || die virtiofs ;;
  *)    die "no mode" ;;
esac
MODULES=/host$g_modules
mkdir -p /lib/modules; mount -o bind "$MODULES" /lib/modules
grep -q overlay /proc/filesystems || insmod "$(find "$MODULES/" -name 'overlay.ko' | head -1)" || die overlay.ko
mount -t tmpfs -o size=75% t /overlay; mkdir /overlay/up /overlay/work
mount -t overlay -o lowerdir=/host,upperdir=/overlay/up,workdir=/overlay/work o /new || die overlay

for d in tmp run mnt var/tmp; do mkdir -p /new/$d; mount -t tmpfs t /new/$d; chmod 1777 /new/$d; done
mkdir -p /new/proc /new/sys /new/dev /new/share /new/job
mount -t proc proc /new/proc; mount -t sysfs sys /new/sys; mount -t devtmpfs dev /new/dev
mkdir -p /new/dev/pts /new/dev/shm; mount -t devpts p /new/dev/pts; mount -t tmpfs t /new/dev/shm
mkdir -p /new/usr/lib/modules; mount -o bind "$MODULES" /new/usr/lib/modules
if [ -n "$g_share" ]; then
  case $g_mode in uml) mount -o bind /host$g_share /new/share ;; qemu) mount -t virtiofs share /new/share ;; esac || die share
fi
mount -o bind /host$g_job /new/job || die job

# The client's owner string contains the host name: it must differ between guests.
hostname "$g_name"
# No DNS here: without these an identity-mapping upcall waits 20 s for a resolver.
rm -f /new/etc/resolv.conf; echo "options timeout:1 attempts:1" >/new/etc/resolv.conf
printf '127.0.0.1 localhost\n127.0.1.1 %s.localdomain %s\n' "$g_name" "$g_name" >/new/etc/hosts
printf '[General]\nDomain = localdomain\n[Translation]\nMethod = nsswitch\n' >/new/etc/idmapd.conf

for s in /sys/class/net/*; do n=${s##*/}; case $n in eth*|vec*|en*) NIC=$n;; esac; done
ifconfig lo 127.0.0.1 up
if [ -n "$g_ip" ] && [ -n "$NIC" ]; then ifconfig $NIC $g_ip netmask 255.255.255.0 up; fi

ls $OUT >/dev/null 2>&1 || die "no output device $OUT"
stty -F $OUT raw -echo 2>/dev/null
[ -x /new/job/boot ] || die "no job"
mkdir -p /new/.guest; cp /bin/busybox /new/.guest/busybox
export OUT GUEST_IP=$g_ip GUEST_NAME=$g_name HOME=/root LC_ALL=C TERM=dumb
exec switch_root /new /job/boot
