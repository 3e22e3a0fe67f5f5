#!/bin/bash
# fetch-rdma-core.sh: brings the upstream sources of Debian 13's rdma-core into the cache and prints the path of the
# tarball. Its checksum is the one in the suite's signed package lists. (The source package as a whole is not asked for:
# the archive does not always serve its .dsc.)
set -euo pipefail
. "$(dirname "$0")/lib.sh"

name=rdma-core_$RDMA_CORE.orig.tar.gz
tarball=$CACHE/src/$name
if [ ! -e "$tarball" ]; then
    private_apt trixie
    mkdir -p "$CACHE/src"
    # Directory, and SHA256 of the tarball, from the paragraph of the Sources list.
    lists=$(apt-get "${APT[@]}" indextargets --format '$(FILENAME)' 'Created-By: Sources')
    found=$(/usr/lib/apt/apt-helper cat-file $lists | awk -v name="$name" '
        /^$/ { if (ours && sum) print directory, sum; ours = checksums = 0; sum = directory = "" }
        /^Package: rdma-core$/ { ours = 1 }
        /^Directory:/ { directory = $2 }
        /^[^ ]/ { checksums = /^Checksums-Sha256:/ }
        checksums && $3 == name { sum = $1 }
        END { if (ours && sum) print directory, sum }')
    [ -n "$found" ] || die "trixie has no $name: its rdma-core moved on; bring RDMA_CORE in lib.sh up to date"
    step "fetching $name" /usr/lib/apt/apt-helper "${APT[@]}" download-file \
        "$(debian_mirror)/${found% *}/$name" "$tarball.part" "SHA256:${found#* }"
    mv "$tarball.part" "$tarball"
fi
printf '%s\n' "$tarball"
