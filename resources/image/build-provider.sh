#!/bin/bash
# build-provider.sh [--check]: builds the rdma-core provider (resources/provider) inside the sources of Debian 13's
# rdma-core, if the cache has no build of these sources, and prints the directory that holds
# libvirtio_rdma-rdmav34.so and virtio_rdma.driver. One build serves both suites: rdma-core 44 and 56 have the same private
# interface, and a build that would ask for a C library newer than Debian 12's is refused. With --check it is always
# built anew, every compiler warning is an error, and the test of its rings is run.
set -euo pipefail
. "$(dirname "$0")/lib.sh"

check=
while [ $# -gt 0 ]; do
    case $1 in
    --check) check=yes; shift ;;
    *) die "unknown option $1; usage: build-provider.sh [--check]" ;;
    esac
done

source=$TREE/resources/provider
[ -e "$source/CMakeLists.txt" ] || die "no provider in this tree: $source has no CMakeLists.txt"
root=$("$IMAGE_DIR/buildroot.sh" --suite trixie)
# What rdma-core has to know of it, and the headers that it shares with the driver.
patch=$TREE/resources/upstream/rdma-core.patch
headers=("$TREE"/resources/driver/virtio_rdma{-abi,_layout,_wire}.h)
out=$CACHE/provider-$(text_hash "$(content_hash "$source" "$patch" "${headers[@]}" "$0")" "${root##*/}")
need patch=patch
newest_glibc=2.36

build() {
    work=$(mktemp -d "$CACHE/provider.XXXXXX")
    trap 'rm -rf "$work"' EXIT
    mkdir "$work/out"
    cp -R "$root/usr/src/rdma-core" "$work/rdma-core"
    patch --silent --fuzz=0 -p1 -d "$work/rdma-core" <"$patch"
    cp -R "$source" "$work/rdma-core/providers/virtio_rdma"
    cp "${headers[@]}" "$work/rdma-core/kernel-headers/rdma/"
    local flags=
    [ -z "$check" ] || flags=-Werror
    BIND=$work in_root "$root" sh -ec '
        mkdir -p /usr/src/build
        mount -t tmpfs tmpfs /usr/src/build
        cp -R /mnt/0/rdma-core /usr/src/build/rdma-core
        cd /usr/src/build/rdma-core
        mkdir build
        cd build
        CFLAGS="-g0 '"$flags"'" cmake -GNinja -DCMAKE_BUILD_TYPE=Release -DCMAKE_INSTALL_PREFIX=/usr \
            -DCMAKE_INSTALL_SYSCONFDIR=/etc -DNO_PYVERBS=1 -DNO_MAN_PAGES=1 ..
        library=$(ninja -t targets all | sed -n "s/^\(lib\/libvirtio_rdma-rdmav[0-9]*\.so\): .*/\1/p")
        ninja "$library"
        if [ -n "'"$check"'" ]; then
            ninja bin/virtio_rdma_test_rings
            bin/virtio_rdma_test_rings
        fi
        strip --strip-unneeded -o "/mnt/0/out/${library#lib/}" "$library"
        objdump -T "$library" >/mnt/0/symbols'
    local glibc
    glibc=$(grep -o 'GLIBC_[0-9.]*' "$work/symbols" | sed 's/GLIBC_//' | sort -Vu | tail -n 1)
    if [ "$(printf '%s\n' "$glibc" $newest_glibc | sort -V | tail -n 1)" != $newest_glibc ]; then
        echo "the provider needs GLIBC_$glibc, Debian 12 has $newest_glibc:"
        grep "GLIBC_$glibc" "$work/symbols"
        return 1
    fi
    echo 'driver virtio_rdma' >"$work/out/virtio_rdma.driver"
    [ -n "$check" ] || mv "$work/out" "$out"
}

if [ -n "$check" ]; then
    step "checking the rdma-core provider" build
    exit
fi
if [ ! -e "$out" ]; then
    locked provider
    [ -e "$out" ] || step "building the rdma-core provider" build
fi
printf '%s\n' "$out"
