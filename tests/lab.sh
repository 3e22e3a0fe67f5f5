#!/bin/bash
# lab.sh [--timeout SECONDS] [--env NAME]... -- COMMAND [ARGUMENT...]
#
# Runs COMMAND where /dev/kvm boots stock kernels, and ends with COMMAND's own exit status. One line on standard error
# says which place that is:
#
# - a machine with vmx or svm and a usable /dev/kvm: right here;
# - any other: an emulated machine (QEMU's TCG with AMD's SVM, Debian 13's kernel). It sees this machine's files at their
#   own paths; what COMMAND writes there is lost when it ends, but for the directory $LAB_SCRATCH, which is this machine's
#   own (default: target/lab in this tree). It has a loopback interface and no other network.
#
# Standard output and error are streamed, standard input is empty. COMMAND gets PATH, HOME, USER, TERM, LANG,
# XDG_CACHE_HOME, LAB_SCRATCH, whatever starts with LONGARM_ (LONGARM_LAB is "emulated" there), CARGO_ or RUST, and what --env names.
#
# Exit status: COMMAND's; 124 when SECONDS went by (COMMAND, or the whole emulated machine, is killed); 125 when the lab
# itself failed. Labs do not wait for each other; two at once are slower each. An emulated machine has LAB_CPUS vCPUs
# (default 1: with two, which TCG runs in parallel, about one guest in thirty hung or reset while it booted, under QEMU 7.2 and 10.0;
# with one, none of more than fifty) and LAB_MEMORY MiB (default 6144).
set -euo pipefail
. "$(dirname "$0")/../resources/image/lib.sh"
# Any failure of the lab itself, told apart from one of COMMAND.
DIE_STATUS=125

usage="usage: lab.sh [--timeout SECONDS] [--env NAME]... -- COMMAND [ARGUMENT...]"
timeout= names=()
while [ $# -gt 0 ]; do
    case $1 in
    --timeout)
        timeout=$(option_value "$@")
        [[ $timeout =~ ^[1-9][0-9]*$ ]] || die "--timeout $timeout: a whole number of seconds, 1 or more"
        shift 2
        ;;
    --env) names+=("$(option_value "$@")"); shift 2 ;;
    --) shift; break ;;
    *) die "unknown option $1; $usage" ;;
    esac
done
[ $# -gt 0 ] || die "no command; $usage"

export LAB_SCRATCH=${LAB_SCRATCH:-$TREE/target/lab}
mkdir -p "$LAB_SCRATCH"
LAB_SCRATCH=$(cd "$LAB_SCRATCH" && pwd)

if grep -q -w -E 'vmx|svm' /proc/cpuinfo && [ -w /dev/kvm ]; then
    say "this machine has hardware virtualization: running right here"
    [ -z "$timeout" ] || set -- timeout --kill-after=10 "$timeout" "$@"
    exec "$@" </dev/null
fi
say "no hardware virtualization: running in an emulated machine (QEMU TCG with nested SVM)"
# For tests that must ask less of it.
export LONGARM_LAB=emulated

need qemu-system-x86_64=qemu-system-x86 busybox=busybox-static cpio=cpio zstd=zstd xz=xz-utils
busybox=$(command -v busybox)
lab=$CACHE/lab-$(text_hash "$(content_hash "$TREE/tests/lab" "$busybox")" v2)
make_lab() {
    local kernel
    kernel=$CACHE/kernel-trixie
    work=$(mktemp -d "$CACHE/lab.XXXXXX")
    trap 'rm -rf "$work"' EXIT
    mkdir -p "$work/initrd/bin" "$work/initrd/lab" "$work/lab"
    cp "$busybox" "$work/initrd/bin/busybox"
    cp "$TREE/tests/lab/init" "$work/initrd/init"
    cp "$TREE/tests/lab/run" "$work/initrd/lab/run"
    chmod 755 "$work/initrd/init"
    copy_modules "$kernel" "$work/initrd/modules" virtio_pci virtio_console 9pnet_virtio 9p overlay tun bridge kvm_amd \
        vhost_vsock
    pack_initrd "$work/initrd" "$work/lab/initrd"
    cp "$kernel"/boot/vmlinuz-* "$work/lab/vmlinuz"
    mv "$work/lab" "$lab"
}
if [ ! -e "$lab" ]; then
    locked lab
    if [ ! -e "$lab" ]; then
        kernel_package trixie >/dev/null
        step "making the lab" make_lab
    fi
    exec 8>&-
fi

control=$(mktemp -d "$CACHE/lab-run.XXXXXX")
qemu=
finish() {
    [ -z "$qemu" ] || kill -KILL "$qemu" 2>/dev/null || true
    rm -rf "$control"
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

printf '%s\n' "$LAB_SCRATCH" >"$control/scratch"
{
    for name in PATH HOME USER TERM LANG XDG_CACHE_HOME LAB_SCRATCH "${!LONGARM_@}" "${!CARGO_@}" "${!RUST@}" "${names[@]}"; do
        [ -z "${!name+set}" ] || printf 'export %s=%q\n' "$name" "${!name}"
    done
    printf 'cd %q || exit 125\nexec' "$PWD"
    printf ' %q' "$@"
    printf '\n'
} >"$control/command"
mkfifo "$control/out" "$control/err" "$control/pulse"
cat "$control/out" &
out=$!
cat "$control/err" >&2 &
err=$!

# The emulated TSC runs at the rate of this machine's. Told, it need not be measured, which goes wrong on a busy machine: then
# the lab's clock runs fast and every time limit in it comes early.
tsc_khz=$({ dmesg 2>/dev/null | sed -n 's/.*tsc: .* \([0-9]*\)\.\([0-9]\{3\}\) MHz.*/\1\2/p'
    grep -q '^flags.* hypervisor' /proc/cpuinfo && sed -n 's/^cpu MHz.*: \([0-9]*\)\.\([0-9]\{3\}\)$/\1\2/p' /proc/cpuinfo
} | head -n 1 || true)
# no_timer_check: a kernel that boots waits a moment for ticks, and panics if this machine had no time to make any.
words="console=ttyS0 quiet loglevel=4 panic=-1 mitigations=off nokaslr audit=0 no_timer_check tsc=reliable"
words+=" ${tsc_khz:+tsc_early_khz=$tsc_khz }random.trust_cpu=on"
# xsave=off: with it the kernel of every guest in the lab finds that XSAVE's sizes do not agree, and gives up on it with a warning.
share() {
    printf '%s' "local,id=$1,path=$2,security_model=none,multidevs=remap${3:-}"
}
# setpriv: the machine does not outlive this script, however that ends.
setpriv --pdeathsig KILL qemu-system-x86_64 -nodefaults -no-user-config -display none -no-reboot \
    -M q35,hpet=off,smm=off -accel tcg,thread=multi,tb-size=1024 -cpu max,xsave=off -smp "${LAB_CPUS:-1}" -m "${LAB_MEMORY:-6144}" \
    -kernel "$lab/vmlinuz" -initrd "$lab/initrd" \
    -append "$words" \
    -chardev file,id=console,path="$control/console" -serial chardev:console \
    -fsdev "$(share root / ,readonly=on)" -device virtio-9p-pci,fsdev=root,mount_tag=root \
    -fsdev "$(share control "$control")" -device virtio-9p-pci,fsdev=control,mount_tag=control \
    -fsdev "$(share scratch "$LAB_SCRATCH")" -device virtio-9p-pci,fsdev=scratch,mount_tag=scratch \
    -device virtio-serial-pci \
    -chardev file,id=out,path="$control/out" -device virtserialport,chardev=out,name=out \
    -chardev file,id=err,path="$control/err" -device virtserialport,chardev=err,name=err \
    -chardev stdio,id=pulse,signal=off -device virtserialport,chardev=pulse,name=pulse \
    -device virtio-rng-pci <"$control/pulse" >"$control/echo" &
qemu=$!
# Opened once QEMU reads it.
exec 7>"$control/pulse"

# Each second the machine is sent a byte, which it sends back (lab/run).
#
# That is an interrupt whatever the machine does, and TCG loses one now and then: do_vmexit and tcg_handle_interrupt change
# CPUState.interrupt_request without a lock, seen in QEMU 7.2, so that one which comes just when a guest in the lab exits may go
# under. Were it the timer's, none would be set anew, and the processor would halt for good. The next interrupt brings it back.
#
# A machine whose answer is missing for too long is lost and ended, as is one whose time is over.
watch() {
    local end=$((SECONDS + ${timeout:-1000000000})) patience=240 moved=$SECONDS answers=0 now
    while sleep 1; do
        echo >&7
        now=$(stat -c %s "$control/echo")
        # Once it has begun to answer it does so at once, however busy it is.
        [ "$now" = "$answers" ] || { answers=$now moved=$SECONDS patience=90; }
        if [ "$SECONDS" -ge "$end" ]; then
            echo expired >"$control/killed"
        elif [ $((SECONDS - moved)) -ge "$patience" ]; then
            echo "silent $patience" >"$control/killed"
        else
            continue
        fi
        kill -KILL "$qemu" 2>/dev/null
        return 0
    done
}
watch </dev/null >/dev/null 2>&1 &
watchdog=$!
wait "$qemu" 2>/dev/null || true
qemu=
kill "$watchdog" 2>/dev/null || true
wait "$out" "$err" || true
case $(cat "$control/killed" 2>/dev/null || true) in
expired)
    say "killed after $timeout s"
    exit 124
    ;;
"silent "*)
    say "killed: the emulated machine said nothing for $(cut -d ' ' -f 2 "$control/killed") s"
    exit 125
    ;;
esac
if [ ! -e "$control/status" ]; then
    tail -n 40 "$control/console" >&2 || true
    say "the emulated machine ended before the command did (its console: above)"
    exit 125
fi
exit "$(cat "$control/status")"
