//! Verbs as kernel users call them: the cases of `resources/driver/selftest`.

use anyhow::Result;

use crate::faults::{clear_log, quiet_log};
use crate::vm::{Lab, Vm, VmSpec, free_port};

/// Semantics 43 (a drain ends in every state, that of a failed device too) and 23 (arming reports completions that wait); memory that is
/// registered by work request, on RC and UC.
pub fn kernel_verbs(lab: &Lab) -> Result<()> {
    let vm = lab.boot(VmSpec::new("a").fabric(free_port()?, &[], "10.0.0.1/24"))?;
    vm.ready()?;
    clear_log(&vm)?;
    selftest(&vm, "")?;
    selftest(&vm, "fail=1")?;
    // A new start brings the device back.
    vm.exec("rmmod virtio_rdma && modprobe virtio_rdma", 60)?
        .ok("the driver out and in")?;
    vm.exec(
        "until rdma link show | grep -q ACTIVE; do sleep 0.1; done",
        60,
    )?
    .ok("the port after that")?;
    selftest(&vm, "")?;
    quiet_log(&vm)
}

/// Runs the module's cases; its words are in the kernel's log.
fn selftest(vm: &Vm, options: &str) -> Result<()> {
    let command = format!(
        "modprobe vrdma_selftest {options} & pid=$!
        for i in $(seq 450); do kill -0 $pid 2>/dev/null || break; sleep 0.2; done
        if kill -0 $pid 2>/dev/null; then echo it hangs: && cat /proc/$pid/stack && false
        else wait $pid && rmmod vrdma_selftest; fi || {{ dmesg | tail -n 60; exit 1; }}"
    );
    vm.exec(&command, 180)?.ok(&command).map(drop)
}
