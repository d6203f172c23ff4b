# What is in the way of this client's data is named: in `sluice why`, and in `sluice status` while it lasts.
set -eu
. /share/lib.sh

why() { host sluice why "$@"; }
# reasons FILE: why reading and writing it would be proxied, and what was.
reasons() {
  why "$1" --json | json '[(w["read_proxied_because"] or {}).get("code"), (w["write_proxied_because"] or {}).get("code"), [p["reason"]["code"] for p in w["proxied"]]] if (w := j["clients"][0]) else 0'
}
warnings() { host sluice status | grep '^warning:' || true; }

step "nothing is in the way"
mount_sluice
io write $M/file 8m 5 --sync
drop_caches; io verify $M/file 8m 5 --exact
why /file
same "$(reasons /file)" "[None, None, []]"
same "$(warnings)" ""
why /file | grep -q "reads    straight from the data servers" || fail "it does not say so"

step "a data server out of reach of the clients, but not of the metadata server"
server=$(why /file --json | json 'j["components"][0]["slots"][0]["data_server"]')
# Addresses of servers end with the numbers of their links.
link=$(host status | json '[d["address"] for d in j["data_servers"] if d["id"] == '"$server"'][0].split(":")[0].split(".")[3]')
drop_caches
host cut "$link"
io verify $M/file 8m 5 --exact
why /file
case $(reasons /file) in
  *"'unreachable-from-client'"*) ;;
  *) fail "$(reasons /file)" ;;
esac
warnings | grep -q "fails at data server $server " || fail "status does not warn: $(warnings)"
host mend "$link"
umount_sluice

step "layouts are off"
host restart --no-layouts
mount_sluice
drop_caches; io verify $M/file 8m 5 --exact
why /file
case $(reasons /file) in
  "['layouts-off', 'layouts-off', ["*) ;;
  *) fail "$(reasons /file)" ;;
esac
warnings | grep -q "through the metadata server" || fail "status does not warn: $(warnings)"
umount_sluice
echo PASS
