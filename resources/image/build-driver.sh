#!/bin/bash
# build-driver.sh [--suite trixie|bookworm] [--check]: builds the guest kernel driver (resources/driver) for that suite's
# kernel, if the cache has no build of these sources, and prints the directory that holds virtio_rdma.ko, and vrdma_selftest.ko
# for tests. With --check it is always built anew, with W=1 and sparse, and every warning is an error.
set -euo pipefail
. "$(dirname "$0")/lib.sh"

suite=trixie check=
while [ $# -gt 0 ]; do
    case $1 in
    --suite) suite=$(option_value "$@"); shift 2 ;;
    --check) check=yes; shift ;;
    *) die "unknown option $1; usage: build-driver.sh [--suite trixie|bookworm] [--check]" ;;
    esac
done
check_suite "$suite"

source=$TREE/resources/driver
[ -e "$source/Makefile" ] || die "no kernel driver in this tree: $source has no Makefile"
root=$("$IMAGE_DIR/buildroot.sh" --suite "$suite")
out=$CACHE/driver-$suite-$(text_hash "$(content_hash "$source" "$0")" "${root##*/}")

build() {
    work=$(mktemp -d "$CACHE/driver.XXXXXX")
    trap 'rm -rf "$work"' EXIT
    cp -R "$source" "$work/virtio_rdma"
    local flags=
    [ -z "$check" ] || flags='W=1 C=1'
    BIND=$work in_root "$root" sh -ec '
        kernel=$(echo /lib/modules/*-amd64/build)
        # The path of the sources goes into the module: always this one.
        mkdir -p /usr/src/virtio_rdma
        mount --bind /mnt/0/virtio_rdma /usr/src/virtio_rdma
        make -C "$kernel" M=/usr/src/virtio_rdma -j"$(nproc)" CONFIG_VRDMA_SELFTEST=m '"$flags"' modules 2>&1' | tee "$work/log"
    if [ -n "$check" ]; then
        # sparse also reports on the kernel headers it reads: those are not ours.
        ! grep -E 'warning|error' "$work/log" | grep -v -E '^/usr/(src|lib)/linux-|(^|/)include/(linux|asm|rdma|net|uapi)/' ||
            return 1
        return 0
    fi
    [ -e "$work/virtio_rdma/virtio_rdma.ko" ] || { echo "the Makefile made no virtio_rdma.ko"; return 1; }
    mkdir "$work/out"
    BIND=$work in_root "$root" sh -ec '
        for module in virtio_rdma vrdma_selftest; do
            strip --strip-debug -o "/mnt/0/out/$module.ko" "/mnt/0/virtio_rdma/$module.ko"
        done'
    mv "$work/out" "$out"
}

if [ -n "$check" ]; then
    step "checking the kernel driver on $suite" build
    exit
fi
if [ ! -e "$out" ]; then
    locked "driver-$suite"
    [ -e "$out" ] || step "building the kernel driver for $suite" build
fi
printf '%s\n' "$out"
