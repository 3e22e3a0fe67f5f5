#!/bin/bash
# run.sh [--list] [NAME...]: all tests of Longarm but those marked "by name", or the named parts. Quiet when all is well: a line a part; the log of what
# failed is printed. Installs what it needs. Logs stay in target/test-logs.
#
# LONGARM_HOSTILE_SECONDS lengthens the hostile-ring part (default 20 here; 600 for the ten minutes of a release).
# LONGARM_GUEST_APPEND adds words to the guests' kernel command lines, for checks of the kernel's own such as
# "slub_debug=FZPU kfence.sample_interval=20".
set -uo pipefail
cd "$(dirname "$0")/.."
tree=$PWD logs=$PWD/target/test-logs
export CARGO_TERM_COLOR=never

# Each part: its name, its time limit in seconds, what it checks. The function part_NAME (dashes as underscores) does it.
parts=(
    'format       120 Rust sources are formatted'
    'clippy       900 no warning in any Rust target'
    'unit         900 unit tests of every crate'
    'conformance  900 two devices, each fabric, driven natively by a software driver; hostile rings and peers'
    'fuzz         600 the fuzz targets build, and find nothing in a short run'
    'bench        600 the benchmarks build, and each native suite gives figures in a run of seconds (no figure is judged)'
    'micro        300 micro-guests on /dev/kvm: PCI, MSI-X, doorbells'
    'driver      1200 the guest driver for both Debian kernels, W=1 and sparse, no warning'
    'provider    1200 the rdma-core provider, no warning'
    'images      1800 guest images: Debian 13 and Debian 12'
    'guests      2400 the scenarios in Debian 13 guests (tests/scenarios), in the lab'
    'bookworm     900 a Debian 12 guest: driver loads, ibv_rc_pingpong -c passes, in the lab'
    'verbs-suite 1300 the tests of rdma-core 56.1 in a Debian 13 guest, against the skips in docs/verbs.md'
    'verbs-suite-bookworm 1300 the tests of rdma-core 44 in a Debian 12 guest, likewise'
    'operations   900 every operation of RC, UC, UD and XRC between two Debian 13 guests, data checked on both sides'
    'tools       1800 by name: perftest, rdmacm-utils, the pingpongs, qperf and fio over RDMA between two Debian 13 guests, with all their options'
    'upstream    1800 by name: the patches in resources/upstream apply; perftest with ours sends inline and uses the new post API'
    'kernel-users 2400 by name: NFS over RDMA (LONGARM_NFS_MIB there and back; 64 in the lab, else 1024) and NVMe over RDMA between two guests'
    'life        2400 by name: 2,000 connections by rdma_cm, 500 alive at once; a process killed 50 times under traffic'
)

part_format() { cargo fmt --all --check; }
part_clippy() { cargo clippy --quiet --workspace --all-targets -- -D warnings; }
part_unit() { cargo test --quiet --workspace --exclude conformance; }
part_conformance() {
    # A debug build: its overflow checks and assertions are worth more here than speed.
    LONGARM_HOSTILE_SECONDS=${LONGARM_HOSTILE_SECONDS:-20} cargo test --quiet --package conformance
}
part_fuzz() { tests/fuzz/run.sh "${LONGARM_FUZZ_SECONDS:-5}"; }
part_micro() { cargo test --quiet --package vmm --test micro_guests -- --nocapture; }
part_bench() {
    cargo build --quiet --release --package longarm-bench && smoke native targets,write && smoke native write,64k,8qp,depth16 &&
        smoke native fairness,read && smoke native cost,send,4k && smoke native control,qp && smoke growth qps && smoke growth peers
}
part_driver() {
    resources/image/build-driver.sh --suite trixie --check && resources/image/build-driver.sh --suite bookworm --check
}
part_provider() { resources/image/build-provider.sh --check; }
part_images() { build_guest_side && image trixie && image bookworm; }
part_guests() { scenarios trixie $(target/release/longarm-scenarios --list); }
part_bookworm() { scenarios bookworm pingpong; }
part_tools() { INCLUDE=qperf,fio scenarios trixie perftest-send-rc perftest-{send,write,read,atomic} rdmacm-utils other-tools; }
part_upstream() {
    # The patch of rdma-core is what every build of the provider begins with.
    resources/image/build-provider.sh --check || return
    LONGARM_PERFTEST=$(resources/upstream/build-perftest.sh) || return
    export LONGARM_PERFTEST
    scenarios trixie perftest-patched
}
part_life() { scenarios trixie connections killed-often; }
part_verbs_suite() { INCLUDE=python3-pyverbs scenarios trixie verbs-suite; }
part_kernel_users() { INCLUDE=nfs-kernel-server,e2fsprogs scenarios trixie nfs nvme; }
part_verbs_suite_bookworm() { INCLUDE=python3-pyverbs scenarios bookworm verbs-suite; }
part_operations() { INCLUDE=python3-pyverbs scenarios trixie operations; }

smoke() { # SUITE WORDS
    "${CARGO_TARGET_DIR:-target}/release/longarm-bench" "$1" --only "$2" --seconds 0.01 --out target/bench/smoke
}
build_guest_side() {
    local life
    cargo build --quiet --release --workspace && life=$(tests/guest/build.sh) && install "$life" target/release/verbs-life
}
image() { resources/image/build.sh --suite "$1" ${INCLUDE:+--include "$INCLUDE"}; }

scenarios() { # SUITE NAME...; INCLUDE: more packages for the guest
    local image_dir out=$tree/target/lab/scenarios-$1${INCLUDE:+-$INCLUDE} name status left=${*:2} lost=0 again=
    build_guest_side || return
    image_dir=$(image "$1") || return
    # Emulation loses a guest now and then, and may be lost itself (tests/lab.sh). There, and only there, a scenario that failed gets one
    # more try, and what a lost lab did not come to gets another lab, a few times. All of it is told.
    while true; do
        rm -f "$out"/{left,failed}
        in_lab "$image_dir" "$out" $left && return
        status=$?
        grep -q -w -E 'vmx|svm' /proc/cpuinfo && return 1
        # Neither is there when the lab was lost before it came to anything.
        [ ! -e "$out/left" ] || left=$(cat "$out/left")
        [ ! -e "$out/failed" ] || for name in $(cat "$out/failed"); do
            [[ " $again " != *" $name "* ]] || return 1
            again+=" $name"
            echo "retried $name: it failed"
        done
        case $status in
        1) [ -s "$out/failed" ] || return 1 ;;
        125)
            [ $((lost += 1)) -le 4 ] || return 1
            echo "retried $(wc -w <<<"$left") scenarios: the lab was lost at $(head -n 1 <<<"$left")"
            ;;
        *) return "$status" ;;
        esac
    done
}

in_lab() { # IMAGE OUT NAME...
    LAB_SCRATCH=$tree/target/lab tests/lab.sh --timeout 2350 -- target/release/longarm-scenarios \
        --longarm target/release/longarm --image "$1" --out "$2" "${@:3}"
}

names() { printf '%s\n' "${parts[@]}" | awk '{ print $1 }'; }

if [ "${1:-}" = --list ]; then
    printf '%s\n' "${parts[@]}" | awk '{ name = $1; $1 = $2 = ""; printf "%-20s%s\n", name, $0 }'
    exit 0
fi
for name in "$@"; do
    names | grep -qx -- "$name" || { echo "run.sh: no part named '$name'; --list names them" >&2; exit 2; }
done

command -v cargo >/dev/null || { echo "run.sh: cargo is missing; install Rust 1.95 or newer (rustup.rs)" >&2; exit 2; }
( . resources/image/lib.sh && need cc=gcc g++=g++ ) || exit 2
mkdir -p "$logs"
passed=0 failed=0
for part in "${parts[@]}"; do
    read -r name limit what <<<"$part"
    if [ $# -eq 0 ]; then
        [[ $what == "by name:"* ]] && continue
    else
        printf '%s\n' "$@" | grep -qx -- "$name" || continue
    fi
    log=$logs/$name.log start=$SECONDS
    export -f "part_${name//-/_}" smoke build_guest_side image scenarios in_lab
    export tree
    # A session of its own, so that the time limit ends the whole part; it leaves nothing running.
    if setsid --wait timeout --kill-after=20 "$limit" bash -c "part_${name//-/_}" >"$log" 2>&1 </dev/null; then
        passed=$((passed + 1))
        echo "ok      $name ($((SECONDS - start)) s)"
        grep -h -E '^(skipped|retried|verbs-suite:)' "$log" | sed 's/^/        /'
    else
        status=$?
        failed=$((failed + 1))
        [ "$status" = 124 ] && echo "time limit of $limit s reached" >>"$log"
        echo "FAILED  $name ($((SECONDS - start)) s): $what"
        tail -n 200 "$log" | sed 's/^/    /'
    fi
done
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
