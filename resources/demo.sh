#!/bin/bash
# demo.sh: two microVMs, RDMA between them, one command.
#
# Installs what is missing, builds Longarm, the guest driver, the provider and the guest image (each kept by content, so a second
# run starts at once), boots two VMs joined by a TCP fabric and runs unmodified perftest between them. Prints the tables, writes
# target/demo/results.csv and target/demo/latency.csv. Exit status 0 only if every run's is 0 and every loss counter reads 0.
#
# On a machine whose /dev/kvm cannot boot stock kernels the VMs run in an emulated lab (tests/lab.sh), which says so.
set -euo pipefail
cd "$(dirname "$0")/.."
start=$SECONDS

step() { # WHAT COMMAND...
    local what=$1 from=$SECONDS
    shift
    echo "== $what ..."
    "$@"
    echo "== $what: $((SECONDS - from)) s"
}

build_image() { image=$(resources/image/build.sh); }

command -v cargo >/dev/null || { echo "demo.sh: cargo is missing; install Rust 1.95 or newer (rustup.rs)" >&2; exit 1; }
( . resources/image/lib.sh && need cc=gcc ) || exit 1
step "building longarm" cargo build --quiet --release --workspace
step "building the guest image" build_image
mkdir -p target/demo
rm -f target/demo/*.csv
status=0
LAB_SCRATCH=$PWD/target/demo step "two VMs, perftest between them" \
    tests/lab.sh --timeout 800 -- target/release/longarm-scenarios \
    --longarm target/release/longarm --image "$image" --out target/demo sweep || status=$?
# The sweep leaves its files in a directory of its name.
if [ -d target/demo/sweep ]; then
    mv -f target/demo/sweep/*.csv target/demo/ 2>/dev/null || status=1
fi
[ "$status" -eq 0 ] && echo "== results: target/demo/results.csv, target/demo/latency.csv; $((SECONDS - start)) s in all"
exit "$status"
