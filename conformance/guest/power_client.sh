# A client that dies together with the servers: `power_client.sh FOLDER`. Its promises are noted on the host's disk.
set -eu
. /share/power.sh
mount_sluice
host post "$1" loading
$PYTHON /share/power.py load "$M/$1" "/share/log-$1" /tmp/never durable
