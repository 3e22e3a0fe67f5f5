#!/bin/bash
# fetch-source.sh PACKAGE VERSION: brings the upstream sources of that package of Debian 13 into the cache and prints the
# path of the tarball. Its checksum is the one in the suite's signed package lists. (The source package as a whole is not
# asked for: the archive does not always serve its .dsc.)
set -euo pipefail
. "$(dirname "$0")/lib.sh"

[ $# = 2 ] || die "usage: fetch-source.sh PACKAGE VERSION"
package=$1 name=$1_$2.orig.tar.gz
tarball=$CACHE/src/$name
if [ ! -e "$tarball" ]; then
    private_apt trixie
    mkdir -p "$CACHE/src"
    # Directory, and SHA256 of the tarball, from the paragraph of the Sources list.
    lists=$(apt-get "${APT[@]}" indextargets --format '$(FILENAME)' 'Created-By: Sources')
    found=$(/usr/lib/apt/apt-helper cat-file $lists | awk -v package="$package" -v name="$name" '
        /^$/ { if (ours && sum) print directory, sum; ours = checksums = 0; sum = directory = "" }
        $1 == "Package:" && $2 == package { ours = 1 }
        /^Directory:/ { directory = $2 }
        /^[^ ]/ { checksums = /^Checksums-Sha256:/ }
        checksums && $3 == name { sum = $1 }
        END { if (ours && sum) print directory, sum }')
    [ -n "$found" ] || die "trixie has no $name: its $package moved on; bring its version in lib.sh up to date"
    step "fetching $name" /usr/lib/apt/apt-helper "${APT[@]}" download-file \
        "$(debian_mirror)/${found% *}/$name" "$tarball.part" "SHA256:${found#* }"
    mv "$tarball.part" "$tarball"
fi
printf '%s\n' "$tarball"
