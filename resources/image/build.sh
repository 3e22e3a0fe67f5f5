#!/bin/bash
# build.sh [--suite trixie|bookworm] [--include PACKAGE,...]: builds the guest image from that suite's packages, if the
# cache has none, and prints the directory that holds
#
#   vmlinuz   the suite's stock kernel
#   initrd    a few modules and a script that mounts root.img below a tmpfs
#   root.img  the root file system (squashfs), for `--disk root.img,ro`; any number of machines may share it
#
# The kernel driver (resources/driver), the rdma-core provider (resources/provider) and the guest agent (resources/agent)
# of this tree are in it. Needs no privilege; the same package versions and sources give the same bytes. A cached image
# is not rebuilt when Debian publishes new package versions: remove the cache directory for that.
set -euo pipefail
. "$(dirname "$0")/lib.sh"

suite=trixie include=
while [ $# -gt 0 ]; do
    case $1 in
    --suite) suite=$(option_value "$@"); shift 2 ;;
    --include) include+=,$(option_value "$@"); shift 2 ;;
    *) die "unknown option $1; usage: build.sh [--suite trixie|bookworm] [--include PACKAGE,...]" ;;
    esac
done
check_suite "$suite"
[[ $include =~ ^[a-z0-9.+,:-]*$ ]] || die "--include ${include#,}: package names with commas between them"

packages=rdma-core,perftest,ibverbs-utils,rdmacm-utils,iproute2,iputils-ping,kmod,mount,procps,pciutils
packages+=$include

# Parts of the kernel's module tree that a virtual machine can have a use for (extended regular expressions).
module_paths=('(arch|crypto|lib|mm|virt)/.*' 'fs/[^/]*' 'net/[^/]*' 'drivers/net/[^/]*'
    'fs/(9p|configfs|dlm|erofs|exportfs|ext4|fat|fuse|jbd2|lockd|netfs|nfs|nfs_common|nfsd|nls|overlayfs|squashfs)/.*'
    'net/(8021q|802|9p|bridge|core|dns_resolver|ipv4|ipv6|key|llc|netfilter|netlink|packet|psample|rds)/.*'
    'net/(sched|smc|sunrpc|tls|unix|vmw_vsock|xdp|xfrm)/.*'
    'drivers/(block|dax|infiniband/core|infiniband/sw|infiniband/ulp|iommu|nvme|target|vdpa|vhost|vfio|virtio)/.*'
    'drivers/misc/pvpanic/.*' 'drivers/char/hw_random/(rng-core|virtio-rng)\..*' 'drivers/net/(bonding|ipvlan|vxlan)/.*'
    'drivers/scsi/(scsi_[^/]*|sd_mod|sg|virtio_scsi|libiscsi[^/]*|iscsi_tcp)\.ko.*')

# What the initrd loads.
initrd_modules=(virtio_pci virtio_blk squashfs overlay)

[ "$(id -u)" = 0 ] || need newuidmap=uidmap
need mmdebstrap=mmdebstrap mksquashfs=squashfs-tools cpio=cpio zstd=zstd depmod=kmod xz=xz-utils busybox=busybox-static

make_base() {
    work=$(mktemp -d "$CACHE/base.XXXXXX")
    trap 'rm -rf "$work"' EXIT
    local exclude excludes=()
    # The archive's name, logs and caches that differ from run to run, and what a guest without udev or a terminal of
    # its own does not read.
    for exclude in '/etc/apt/sources.list*' '/etc/resolv.conf' '/etc/hostname' '/etc/machine-id' '/var/log/*' \
        '/var/cache/*' '/var/lib/apt/*' '/var/lib/dpkg/*-old' '/usr/lib/udev/hwdb*' '/usr/lib/modules*' \
        '/usr/lib/x86_64-linux-gnu/gconv/*' '/dev/*' '/usr/lib/systemd/systemd-networkd' '/usr/share/man/*' \
        '/usr/share/info/*' '/usr/share/locale/*'; do
        excludes+=(--path-exclude="$exclude")
    done
    mmdebstrap --variant=essential --include="$packages" --aptopt='Acquire::Languages "none"' \
        --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/doc/*' \
        --dpkgopt='path-exclude=/usr/share/locale/*' --dpkgopt='path-exclude=/usr/share/info/*' \
        --dpkgopt='path-include=/usr/share/doc/rdma-core' --dpkgopt='path-include=/usr/share/doc/rdma-core/tests*' \
        "$suite" "$work/root.tar" "$(debian_mirror)"
    mkdir -p "$work/base"
    mmtarfilter "${excludes[@]}" <"$work/root.tar" >"$work/base/root.tar"
    mv "$work/base" "$base"
}

# The chosen modules, uncompressed: the image compresses with something that a guest unpacks faster.
make_modules() {
    local version pattern
    work=$(mktemp -d "$CACHE/modules.XXXXXX")
    trap 'rm -rf "$work"' EXIT
    version=$(ls "$kernel/lib/modules")
    mkdir -p "$work/modules/$version/kernel"
    pattern=$(IFS='|' && echo "${module_paths[*]}")
    cd "$kernel/lib/modules/$version"
    cp modules.{order,builtin,builtin.modinfo} "$work/modules/$version/"
    cd kernel
    find . -regextype posix-extended -type f -regex "\./($pattern)" ! -name '*test*' ! -path '*/drbd/*' -print0 |
        xargs -0 cp --parents -t "$work/modules/$version/kernel"
    cd "$work"
    find . -name '*.xz' -print0 | xargs -0r -n 16 -P "$(nproc)" xz -d
    mv "$work/modules" "$modules"
}

# install_modules ROOT: those and our driver, with their index.
install_modules() {
    local version target
    version=$(ls "$modules")
    target=$1/lib/modules/$version
    mkdir -p "$1/lib"
    cp -R "$modules" "$1/lib/modules"
    if [ -n "$driver" ]; then
        mkdir "$target/updates"
        cp "$driver"/*.ko "$target/updates/"
    fi
    PATH=$PATH:/usr/sbin:/sbin depmod -b "$1" "$version"
    # kmod reads the binary forms only.
    rm -f "$target"/modules.{dep,alias,symbols,builtin.alias}
    # The root has /lib as a link to usr/lib.
    mv "$1/lib/modules" "$1/usr/lib/"
    rmdir "$1/lib"
}

make_image() {
    work=$(mktemp -d "$CACHE/image.XXXXXX")
    trap 'rm -rf "$work"' EXIT
    local extra=$work/extra
    mkdir -p "$extra"/{etc,usr/lib/longarm,usr/sbin,proc,sys,dev,run,tmp} "$work/out" "$work/initrd/bin"
    echo longarm >"$extra/etc/hostname"
    printf '127.0.0.1 localhost\n::1 localhost\n' >"$extra/etc/hosts"
    cp "$IMAGE_DIR/guest/init" "$extra/usr/lib/longarm/init"
    cp "$busybox" "$extra/usr/lib/longarm/busybox"
    chmod 755 "$extra"/usr/lib/longarm/*
    [ -z "$agent" ] || install -m 755 "$agent" "$extra/usr/sbin/longarm-agent"
    if [ -n "$provider" ]; then
        mkdir -p "$extra/usr/lib/x86_64-linux-gnu/libibverbs" "$extra/etc/libibverbs.d"
        cp "$provider"/*.so "$extra/usr/lib/x86_64-linux-gnu/libibverbs/"
        cp "$provider"/*.driver "$extra/etc/libibverbs.d/"
    fi
    install_modules "$extra"

    # Directories that the base has are its own business: of those, only what is in them is added.
    ( cd "$extra" && find . -mindepth 1 -printf '%p%y\n' | sed 's/^\(.*\)d$/\1\//; t; s/.$//' | sort ) >"$work/ours"
    tar -tf "$base/root.tar" | sort >"$work/theirs"
    comm -23 "$work/ours" "$work/theirs" >"$work/list"
    cp "$base/root.tar" "$work/root.tar"
    tar -C "$extra" --no-recursion --owner=0 --group=0 --numeric-owner --mtime="@$SOURCE_DATE_EPOCH" --format=gnu \
        -T "$work/list" -cf "$work/extra.tar"
    tar --concatenate -f "$work/root.tar" "$work/extra.tar"
    mksquashfs - "$work/out/root.img" -tar -comp lz4 -b 65536 -root-mode 755 -root-uid 0 -root-gid 0 -no-xattrs -no-exports -quiet \
        -no-progress <"$work/root.tar"

    cp "$busybox" "$work/initrd/bin/busybox"
    cp "$IMAGE_DIR/guest/initrd-init" "$work/initrd/init"
    chmod 755 "$work/initrd/init"
    copy_modules "$kernel" "$work/initrd/modules" "${initrd_modules[@]}"
    pack_initrd "$work/initrd" "$work/out/initrd"
    cp "$kernel"/boot/vmlinuz-* "$work/out/vmlinuz"
    mv "$work/out" "$image"
    # Of older images, some are kept: other checkouts may use them.
    find "$CACHE" -maxdepth 1 -name "image-$suite-*" -mtime +0 -printf '%T@ %p\n' | sort -rn | tail -n +5 |
        cut -d' ' -f2- | xargs -r rm -rf
}

build_agent() {
    # Static: the same file runs in either suite, and starts faster. The path of a checkout or of a home does not show.
    cd "$TREE"
    RUSTFLAGS="-C target-feature=+crt-static --remap-path-prefix=$HOME=/home --remap-path-prefix=$TREE=/tree" \
        cargo build --quiet --release --package longarm-agent --target x86_64-unknown-linux-gnu
}

busybox=$(command -v busybox)
driver= provider= agent=
if [ -e "$TREE/resources/driver/Makefile" ]; then
    driver=$("$IMAGE_DIR/build-driver.sh" --suite "$suite")
else
    say "this tree has no kernel driver: the image will have none"
fi
if [ -e "$TREE/resources/provider/CMakeLists.txt" ]; then
    provider=$("$IMAGE_DIR/build-provider.sh")
else
    say "this tree has no rdma-core provider: the image will have none"
fi
if [ -e "$TREE/resources/agent/Cargo.toml" ]; then
    step "building the guest agent" build_agent
    agent=${CARGO_TARGET_DIR:-$TREE/target}/x86_64-unknown-linux-gnu/release/longarm-agent
else
    say "this tree has no guest agent: the image will have a shell on the console"
fi

base=$CACHE/base-$suite-$(text_hash "$packages" "$(declare -f make_base)")
kernel=$(kernel_package "$suite")
modules=$CACHE/modules-$suite-$(text_hash "$(ls "$kernel/lib/modules")" "${module_paths[@]}" "$(declare -f make_modules)")
image=$CACHE/image-$suite-$(text_hash "${base##*/}" "$(ls "$kernel/lib/modules")" "${driver##*/}" "${provider##*/}" \
    "$([ -z "$agent" ] || content_hash "$agent")" "$(content_hash "$0" "$IMAGE_DIR/lib.sh" "$IMAGE_DIR/guest" "$busybox")")
if [ ! -e "$image" ]; then
    locked "image-$suite"
    [ -e "$base" ] || step "installing Debian $suite packages for the guest" make_base
    [ -e "$modules" ] || step "choosing kernel modules of $suite" make_modules
    [ -e "$image" ] || step "making the guest image of $suite" make_image
fi
touch "$image"
printf '%s\n' "$image"
