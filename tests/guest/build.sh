#!/bin/bash
# build.sh: builds verbs-life (this directory) in the Debian 13 build root, if the cache has no build of these sources, and
# prints its path. It runs in Debian 13 guests, which have no compiler.
set -euo pipefail
. "$(dirname "$0")/../../resources/image/lib.sh"

source=$TREE/tests/guest
root=$("$IMAGE_DIR/buildroot.sh" --suite trixie)
out=$CACHE/verbs-life-$(text_hash "$(content_hash "$source")" "${root##*/}")

build() {
    work=$(mktemp -d "$CACHE/verbs-life.XXXXXX")
    trap 'rm -rf "$work"' EXIT
    cp "$source"/*.[ch] "$work"
    BIND=$work in_root "$root" sh -ec 'cd /mnt/0 && gcc -O2 -s -Wall -Wextra -Werror -o verbs-life *.c -libverbs -lpthread'
    mv "$work/verbs-life" "$out"
}

if [ ! -e "$out" ]; then
    locked verbs-life
    [ -e "$out" ] || step "building verbs-life" build
fi
printf '%s\n' "$out"
