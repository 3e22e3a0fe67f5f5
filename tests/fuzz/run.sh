#!/bin/bash
# run.sh [SECONDS]: builds every fuzz target and runs each for that long (default 5). For real fuzzing, with coverage to guide it,
# use `cargo +nightly fuzz` as README.md says; this needs neither, and shows that the targets build and find nothing at once.
set -euo pipefail
cd "$(dirname "$0")"
command -v g++ >/dev/null || { echo "g++ is missing (libFuzzer is C++): apt-get install g++" >&2; exit 1; }
RUSTFLAGS="--cfg fuzzing" cargo build --quiet --target-dir ../../target/fuzz
for target in fuzz_targets/*.rs; do
    name=$(basename "$target" .rs)
    corpus=$(mktemp -d)
    "../../target/fuzz/debug/$name" -max_total_time="${1:-5}" -timeout=60 -max_len=65536 "$corpus"
    rm -rf "$corpus"
done
