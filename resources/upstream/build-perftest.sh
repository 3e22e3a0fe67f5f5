#!/bin/bash
# build-perftest.sh: builds Debian 13's perftest with perftest.patch applied, if the cache has no build of it, and prints the
# path of a squashfs image with the tools, for a guest to mount.
set -euo pipefail
. "$(dirname "$0")/../image/lib.sh"

patch=$TREE/resources/upstream/perftest.patch
need patch=patch mksquashfs=squashfs-tools
tarball=$("$IMAGE_DIR/fetch-source.sh" perftest "$PERFTEST")
root=$("$IMAGE_DIR/buildroot.sh" --include automake,libtool,librdmacm-dev,libibumad-dev,libpci-dev)
out=$CACHE/perftest-$(text_hash "$(content_hash "$patch" "$0")" "${tarball##*/}" "${root##*/}").img

build() {
    work=$(mktemp -d "$CACHE/perftest.XXXXXX")
    trap 'rm -rf "$work"' EXIT
    mkdir "$work/source" "$work/tools"
    tar -C "$work/source" --no-same-owner --strip-components=1 -xzf "$tarball"
    patch --fuzz=0 -p1 -d "$work/source" <"$patch"
    BIND=$work in_root "$root" sh -ec '
        cd /mnt/0/source
        autoreconf --force --install
        ./configure
        make -j2
        strip ib_*_bw ib_*_lat
        cp ib_*_bw ib_*_lat /mnt/0/tools/'
    mksquashfs "$work/tools" "$work/img" -comp lz4 -all-root -no-xattrs -no-exports -quiet -no-progress
    mv "$work/img" "$out"
}

if [ ! -e "$out" ]; then
    locked perftest
    [ -e "$out" ] || step "building perftest with our patch" build
fi
printf '%s\n' "$out"
