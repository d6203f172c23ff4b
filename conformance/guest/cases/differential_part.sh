# As `differential`, but /share/sources names a part of the headers.
set -eu
. /share/cases/differential.sh
