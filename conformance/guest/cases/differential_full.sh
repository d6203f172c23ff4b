# As `differential`, but /share/sources names a whole kernel source tree.
set -eu
. /share/cases/differential.sh
