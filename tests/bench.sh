#!/bin/bash
# bench.sh [native|guest|vmm|all] [OPTION...]: benchmarks of Longarm, each figure beside its reference measured in the same run.
#
# native: no VM; two processes, each a whole device, over loopback TCP: native.csv, and growth.csv (how cost grows).
# guest:  perftest between two VMs, on virtio-rdma and on soft-RoCE in the same VMs: guest.csv.
# vmm:    boot time, memory and idle processor time, beside QEMU's microvm machine: vmm.csv.
# all:    everything, which is what no argument means.
#
# Where /dev/kvm does not boot stock kernels, guest and vmm run in the emulated lab (tests/lab.sh): ratios there say something, figures
# do not.
#
# Prints tables; writes CSV files and an SVG plot of each table under target/bench. Installs what it needs. What the tables mean and
# how they are measured: docs/performance.md. Options go to target/release/longarm-bench:
#   --only WORD,...   only the cases whose labels have all of these words (--list shows them)
#   --rounds N        rounds of each case, of which the median counts (at least 5, the default)
#   --seconds S       time of each sample
#   --lanes N         connections between two devices, native only (default: as many as a monitor makes)
#   --out DIR         where files go (default target/bench)
# Exit status 0 only if no figure was refused; a figure is refused when a loss counter moved while it was measured.
set -euo pipefail
cd "$(dirname "$0")/.."
export CARGO_TERM_COLOR=never

what=all
case ${1:-} in
native | guest | vmm | all) what=$1 && shift ;;
'' | --*) ;;
*) echo "bench.sh: no benchmarks named '$1': native, guest, vmm or all" >&2 && exit 2 ;;
esac

command -v cargo >/dev/null || { echo "bench.sh: cargo is missing; install Rust 1.95 or newer (rustup.rs)" >&2; exit 2; }
( . resources/image/lib.sh && need cc=gcc ) || exit 2

status=0
suites() { # NAME... -- OPTION...
    local name names=()
    while [ "$1" != -- ]; do names+=("$1"); shift; done
    shift
    for name in "${names[@]}"; do "${CARGO_TARGET_DIR:-target}/release/longarm-bench" "$name" "$@" || status=$?; done
}

# Where VMs boot, in a network namespace of its own: taps and addresses there meet nobody's.
in_lab() { # LIMIT NAME OPTION...
    local limit=$1 image user=() out=target/bench word last=
    shift
    for word in "$@"; do
        [ "$last" != --out ] || out=$word
        last=$word
    done
    [ "$(id -u)" = 0 ] || user=(--map-root-user)
    image=$(resources/image/build.sh) || exit 2
    LAB_SCRATCH=$out tests/lab.sh --timeout "$limit" -- unshare --net "${user[@]}" "${CARGO_TARGET_DIR:-target}/release/longarm-bench" \
        "$@" --longarm "${CARGO_TARGET_DIR:-target}/release/longarm" --image "$image" || status=$?
}

case $what in native | all)
    cargo build --quiet --release --package longarm-bench
    suites native growth -- "$@"
    ;;
esac
case $what in guest | vmm | all)
    ( . resources/image/lib.sh && need ip=iproute2 qemu-system-x86_64=qemu-system-x86 ) || exit 2
    cargo build --quiet --release --workspace
    ;;
esac
case $what in guest | all) in_lab 1800 guest "$@" ;; esac
case $what in vmm | all) in_lab 900 vmm "$@" ;; esac
exit "$status"
