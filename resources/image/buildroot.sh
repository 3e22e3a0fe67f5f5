#!/bin/bash
# buildroot.sh [--suite trixie|bookworm] [--include PACKAGE,...]: makes the Debian root in which the guest driver and the
# rdma-core provider are built for that suite, if the cache has none, and prints its path. It holds the suite's own gcc, kernel headers, sparse
# and cmake, and the unpacked sources of Debian 13's rdma-core under /usr/src/rdma-core (libibverbs-dev does not ship the
# provider interface, infiniband/driver.h).
set -euo pipefail
. "$(dirname "$0")/lib.sh"

suite=trixie include=
while [ $# -gt 0 ]; do
    case $1 in
    --suite) suite=$(option_value "$@"); shift 2 ;;
    --include) include+=,$(option_value "$@"); shift 2 ;;
    *) die "unknown option $1; usage: buildroot.sh [--suite trixie|bookworm] [--include PACKAGE,...]" ;;
    esac
done
check_suite "$suite"

# The headers of the very kernel that the image gets: a module loads in no other.
root_of() {
    kernel=$(ls "$1/lib/modules")
    packages=gcc,make,libc6-dev,linux-headers-$kernel,kmod,xz-utils,sparse,cmake,ninja-build,pkg-config,libnl-3-dev
    packages+=,libnl-route-3-dev,libudev-dev,libibverbs-dev,python3-minimal,perl,file$include
    root=$CACHE/buildroot-$suite-$(text_hash "$packages" "$RDMA_CORE" v1)
}
root_of "$(kernel_package "$suite")"
if [ ! -e "$root" ]; then
    locked "buildroot-$suite"
fi
if [ ! -e "$root" ]; then
    # The archive has headers for its newest kernel only.
    root_of "$(kernel_package "$suite" --newest)"
    [ "$(id -u)" = 0 ] || need newuidmap=uidmap
    need mmdebstrap=mmdebstrap
    tarball=$("$IMAGE_DIR/fetch-source.sh" rdma-core "$RDMA_CORE")
    work=$(mktemp -d "$CACHE/buildroot.XXXXXX")
    trap 'rm -rf "$work"' EXIT
    make_root() {
        mmdebstrap --variant=minbase --include="$packages" \
            --aptopt='Acquire::Languages "none"' --dpkgopt='path-exclude=/usr/share/man/*' \
            --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
            "$suite" "$work/root.tar" "$(debian_mirror)"
        mkdir "$work/root"
        # Device nodes cannot be made by everyone and are not wanted: in_root mounts the machine's /dev.
        tar -C "$work/root" --no-same-owner --exclude='./dev/*' -xf "$work/root.tar"
        mkdir -p "$work/root/usr/src/rdma-core"
        tar -C "$work/root/usr/src/rdma-core" --no-same-owner --strip-components=1 -xzf "$tarball"
        mv "$work/root" "$root"
    }
    step "making the build root of $suite" make_root
fi
printf '%s\n' "$root"
