# Shared by the scripts of resources/image and by tests/lab.sh: sourced, never run.
#
# Everything that is downloaded or built lands in one cache directory, under a name that carries the hash of what it was
# made from, so that a second checkout on the same machine reuses it. No archive host is written anywhere in this tree:
# the machine's own apt configuration says where Debian lives.

IMAGE_DIR=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
TREE=$(cd "$IMAGE_DIR/../.." && pwd)
CACHE=${LONGARM_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/longarm}

# 2025-01-01: every file time in what we build, unless the caller sets another.
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-1735689600}
export LC_ALL=C.UTF-8
umask 022

say() { printf '%s: %s\n' "${0##*/}" "$*" >&2; }
die() { say "$*"; exit "${DIE_STATUS:-1}"; }

# step WHAT COMMAND...: runs COMMAND with its output in a log, says what it does and how long it took. The log is shown
# only when the command fails, which ends the script.
step() {
    local what=$1 start=$SECONDS log
    shift
    mkdir -p "$CACHE/log"
    log=$(mktemp "$CACHE/log/${0##*/}.XXXXXX")
    say "$what ..."
    # In the background, for bash ignores `set -e` within a condition.
    ( set -e; "$@" ) </dev/null >"$log" 2>&1 &
    if ! wait $!; then
        tail -n 60 "$log" >&2
        die "$what: failed after $((SECONDS - start)) s (whole log: $log)"
    fi
    rm -f "$log"
    say "$what: done in $((SECONDS - start)) s"
}

# content_hash PATH...: 16 hex digits over the names and contents of files, whole directories included. Names count
# relative to the argument, so the hash is the same in every checkout. Editor and build droppings are left out.
content_hash() {
    local path
    for path in "$@"; do
        if [ -d "$path" ]; then
            ( cd "$path" && find . -type f ! -name '*.o' ! -name '*.ko' ! -name '*.mod' ! -name '*.mod.c' ! -name '*.cmd' \
                ! -name '*~' ! -name modules.order ! -name Module.symvers -print0 | sort -z | xargs -0r sha256sum )
        else
            sha256sum <"$path"
        fi
    done | sha256sum | cut -c1-16
}

text_hash() { printf '%s\n' "$@" | sha256sum | cut -c1-16; }

# locked NAME: holds the cache's lock NAME until this process ends, so that two builds of one thing do not meet.
locked() {
    mkdir -p "$CACHE/lock"
    exec 8>"$CACHE/lock/$1"
    if ! flock -n 8; then
        say "waiting for another build of $1"
        flock 8
    fi
}

# need COMMAND=PACKAGE...: installs the packages whose command is missing. Only root can; anyone else is told what to do.
need() {
    local pair missing=()
    for pair in "$@"; do
        PATH=$PATH:/usr/sbin:/sbin command -v "${pair%%=*}" >/dev/null || missing+=("${pair#*=}")
    done
    [ ${#missing[@]} -eq 0 ] && return
    [ "$(id -u)" = 0 ] || die "missing packages; as root: apt-get install ${missing[*]}"
    step "installing ${missing[*]}" apt_install "${missing[@]}"
}

apt_install() {
    exec 9>/run/lock/longarm-apt
    flock 9
    DEBIAN_FRONTEND=noninteractive apt-get -q -y -o DPkg::Lock::Timeout=300 install --no-install-recommends "$@" && return
    apt-get -q -o DPkg::Lock::Timeout=300 update
    DEBIAN_FRONTEND=noninteractive apt-get -q -y -o DPkg::Lock::Timeout=300 install --no-install-recommends "$@"
}

# The archive that this machine itself installs Debian from.
debian_mirror() {
    local codename uri
    codename=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
    uri=$(apt-get indextargets --no-release-info --format '$(RELEASE) $(COMPONENT) $(REPO_URI)' 'Created-By: Packages' |
        awk -v suite="$codename" '$1 == suite && $2 == "main" { print $3; exit }')
    [ -n "$uri" ] || die "no Debian archive for '$codename main' in this machine's apt sources"
    printf '%s\n' "${uri%/}"
}

check_suite() {
    case $1 in
    trixie | bookworm) ;;
    *) die "--suite $1: no recipe for it; one of trixie (Debian 13), bookworm (Debian 12)" ;;
    esac
}

# The rdma-core whose sources the provider is built in, for every suite: the one of Debian 13.
RDMA_CORE=56.1
# The perftest that the patch in resources/upstream is tried with: that of Debian 13 too.
PERFTEST=25.01.0+0.80

# private_apt SUITE: makes an apt directory of our own for SUITE (the machine's own sources stay as they are), updates it
# at most once a day, and sets APT to the options that use it.
private_apt() {
    local suite=$1 dir=$CACHE/apt-$1 mirror signed=
    mirror=$(debian_mirror)
    mkdir -p "$dir"/{lists/partial,cache/archives/partial}
    : >"$dir/status"
    if [ -r /usr/share/keyrings/debian-archive-keyring.gpg ]; then
        signed='[signed-by=/usr/share/keyrings/debian-archive-keyring.gpg]'
    fi
    printf 'deb%s %s %s main\n' "${signed:+ $signed}" "$mirror" "$suite" "-src${signed:+ $signed}" "$mirror" "$suite" \
        >"$dir/sources.list"
    APT=(-q -o Dir::Etc::sourcelist="$dir/sources.list" -o Dir::Etc::sourceparts=- -o Dir::State::lists="$dir/lists"
        -o Dir::State::status="$dir/status" -o Dir::Cache="$dir/cache" -o Acquire::Languages=none
        -o APT::Architecture=amd64 -o APT::Architectures=amd64)
    [ "$(id -u)" = 0 ] && APT+=(-o APT::Sandbox::User=root)
    if [ -z "$(find "$dir/updated" -mmin -1440 2>/dev/null)" ]; then
        step "reading the package lists of $suite" apt-get "${APT[@]}" update
        touch "$dir/updated"
    fi
}

# in_root ROOT COMMAND...: runs COMMAND in the Debian root ROOT, in a mount namespace of its own (and a user namespace when
# not root), with /proc, /dev and the directories named in BIND (host paths, mounted under /mnt/0, /mnt/1, ...).
in_root() {
    local root=$1 user=()
    shift
    [ "$(id -u)" = 0 ] || user=(--map-root-user)
    BIND=${BIND:-} ROOT=$root unshare --mount --pid --fork "${user[@]}" sh -e -c '
        mount --rbind /dev "$ROOT/dev"
        mount -t proc proc "$ROOT/proc"
        n=0
        for dir in $BIND; do
            mkdir -p "$ROOT/mnt/$n"
            mount --bind "$dir" "$ROOT/mnt/$n"
            n=$((n + 1))
        done
        exec chroot "$ROOT" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 \
            SOURCE_DATE_EPOCH="$SOURCE_DATE_EPOCH" "$@"' in_root "$@"
}

# option_value NAME ARGUMENTS...: the value of an option, or a clear word that it is missing.
option_value() {
    [ $# -ge 2 ] || die "$1 needs a value"
    printf '%s' "$2"
}

# kernel_package SUITE [--newest]: extracts the suite's stock kernel package into the cache, if it is not there (or not the
# archive's newest), with the module index made, and prints the directory. It holds boot/vmlinuz-VERSION and
# lib/modules/VERSION.
kernel_package() {
    local suite=$1 dir=$CACHE/kernel-$1 name
    if [ ! -e "$dir/lib" ] || [ "${2:-}" = --newest ]; then
        (
            locked "kernel-$suite"
            need depmod=kmod xz=xz-utils
            private_apt "$suite"
            name=$(apt-cache "${APT[@]}" show linux-image-amd64 |
                sed -n 's/^Depends: *linux-image-\([^ ,]*\).*/\1/p' | head -n 1)
            [ -e "$dir/lib/modules/$name" ] || step "fetching linux-image-$name" extract_kernel "linux-image-$name" "$dir"
        ) >&2 || return 1
    fi
    printf '%s\n' "$dir"
}

extract_kernel() {
    # Not local: the trap runs when the function is over.
    work=$(mktemp -d "$CACHE/kernel.XXXXXX")
    trap 'rm -rf "$work"' EXIT
    cd "$work"
    apt-get "${APT[@]}" download "$1"
    dpkg-deb -x ./*.deb root
    # Debian 13 packages ship usr/lib/modules, Debian 12 lib/modules; depmod looks in lib.
    [ -e root/lib ] || ln -s usr/lib root/lib
    PATH=$PATH:/usr/sbin:/sbin depmod -b root "$(ls root/lib/modules)"
    rm -rf "$2"
    mv root "$2"
}

# copy_modules KERNEL_DIR TARGET MODULE...: puts the modules and what they need into TARGET, uncompressed, and their names
# in loading order into TARGET/order. What the kernel has built in is passed over; what it has not at all is an error.
copy_modules() {
    local dir=$1 target=$2 version module list kind path rest
    shift 2
    version=$(ls "$dir/lib/modules")
    mkdir -p "$target"
    : >"$target/order"
    for module in "$@"; do
        list=$(PATH=$PATH:/usr/sbin:/sbin modprobe -d "$dir" -S "$version" --show-depends "$module") ||
            { echo "kernel $version has no module $module" >&2; return 1; }
        while read -r kind path rest; do
            [ "$kind" = insmod ] || continue
            local name=${path##*/}
            grep -qx "${name%.xz}" "$target/order" && continue
            case $name in
            *.xz) xz -dc "$path" >"$target/${name%.xz}" ;;
            *) cp "$path" "$target/$name" ;;
            esac
            echo "${name%.xz}" >>"$target/order"
        done <<<"$list"
    done
}

# pack_initrd DIRECTORY FILE: a compressed cpio archive of DIRECTORY, the same bytes for the same contents.
pack_initrd() {
    find "$1" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +
    ( cd "$1" && find . -print0 | sort -z | cpio -0 -o -H newc -R 0:0 --reproducible --quiet ) | zstd -q -10 >"$2"
}
