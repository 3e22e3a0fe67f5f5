//! NVMe over RDMA between two VMs: the kernel's own initiator and target, which use what kernel users of verbs use (regions registered by
//! work request and invalidated by the peer, the rw API, CQ pools, drains), with the kernel's own modules and no other tool.

use std::time::Duration;

use anyhow::{Result, ensure};

use crate::faults::{clear_log, quiet_log};
use crate::running::Running;
use crate::tools::objects;
use crate::vm::{Lab, Vm};

/// What one step may take.
const LIMIT: Duration = Duration::from_secs(60);

/// The target: a RAM disk of 32 MiB as the only namespace of a subsystem that anybody may use.
const TARGET: &str = "set -e
modprobe -a nvmet-rdma
modprobe brd rd_nr=1 rd_size=32768 max_part=0
mountpoint -q /sys/kernel/config || mount -t configfs none /sys/kernel/config
cd /sys/kernel/config/nvmet
mkdir subsystems/longarm subsystems/longarm/namespaces/1
echo 1 >subsystems/longarm/attr_allow_any_host
echo 4c6f6e6761726d01 >subsystems/longarm/attr_serial
echo 4c6f6e67-6172-4d00-8000-000000000001 >subsystems/longarm/namespaces/1/device_uuid
echo -n /dev/ram0 >subsystems/longarm/namespaces/1/device_path
echo 1 >subsystems/longarm/namespaces/1/enable
mkdir ports/1
cd ports/1
echo rdma >addr_trtype
echo ipv4 >addr_adrfam
echo 10.0.0.2 >addr_traddr
echo 4420 >addr_trsvcid
ln -s ../../subsystems/longarm subsystems/longarm";

/// The target's port forgets its listener with the device that it was on, and is to be opened anew, when there is an address again.
const LISTEN: &str = "set -e
cd /sys/kernel/config/nvmet/ports/1
rm subsystems/longarm
for i in $(seq 100); do ln -s ../../subsystems/longarm subsystems/longarm && exit 0; sleep 0.2; done
exit 1";

const RELOAD: &str = "rmmod virtio_rdma && modprobe virtio_rdma";

/// All of [`TARGET`] taken away.
const NO_TARGET: &str = "set -e
cd /sys/kernel/config/nvmet
rm ports/1/subsystems/longarm
rmdir ports/1 subsystems/longarm/namespaces/1 subsystems/longarm
cd /
for i in $(seq 20); do rmmod nvmet_rdma && break; sleep 0.5; done
rmmod nvmet brd";

/// The initiator: connected once the disk is there. What it does about a lost target it does for ever.
const CONNECT: &str = "set -e
modprobe nvme-rdma
for i in $(seq 20); do
    echo transport=rdma,traddr=10.0.0.2,trsvcid=4420,nqn=longarm,reconnect_delay=1,ctrl_loss_tmo=-1,keep_alive_tmo=5 >/dev/nvme-fabrics && break
    sleep 0.5
done
for i in $(seq 100); do [ -b /dev/nvme0n1 ] && exit 0; sleep 0.1; done
exit 1";

/// Waits until it is connected again.
const LIVE: &str = "for i in $(seq 300); do grep -q live /sys/class/nvme/nvme*/state && exit 0; sleep 0.2; done; exit 1";

/// Data there and back, compared with what the target's disk is then read to hold.
const COPIES: &str = "set -e
[ -e /tmp/data ] || dd if=/dev/urandom of=/tmp/data bs=1M count=16
dd if=/dev/zero of=/dev/nvme0n1 bs=1M count=16 oflag=direct conv=nocreat
for size in 4k 128k 4M; do
    case $size in 4k) count=16 ;; 128k) count=32 ;; 4M) count=4 ;; esac
    dd if=/tmp/data of=/dev/nvme0n1 bs=$size count=$count oflag=direct conv=nocreat
    dd if=/dev/nvme0n1 of=/tmp/back bs=$size count=$count iflag=direct
    cmp -n $(stat -c %s /tmp/back) /tmp/data /tmp/back
done
dd if=/dev/zero of=/dev/nvme0n1 bs=1M count=16 conv=fsync,nocreat
dd if=/tmp/data of=/dev/nvme0n1 bs=1M conv=fsync,nocreat
echo 3 >/proc/sys/vm/drop_caches
cmp -n 16777216 /tmp/data /dev/nvme0n1";

/// Its end, and that of its modules.
const DISCONNECT: &str = "set -e
for controller in /sys/class/nvme/nvme*; do echo 1 >$controller/delete_controller; done
rmmod nvme_rdma";

/// Data is written and read back, in pieces small and large, straight and through the page cache; the target is killed under load and comes
/// back; then the driver goes under a connection, on either side.
pub fn nvme(lab: &Lab) -> Result<()> {
    let (a, mut b) = lab.boot_pair(&[])?;
    for vm in [&a, &b] {
        clear_log(vm)?;
    }
    let base = objects(&a)?;
    b.exec(TARGET, 60)?.ok("the target")?;
    a.exec(CONNECT, 60)?.ok("the initiator")?;
    a.exec(COPIES, 120)?.ok("what was written was read back")?;

    let load = start_load(&a)?;
    b.crash();
    b = lab.boot(b.spec.clone())?;
    b.ready()?;
    clear_log(&b)?;
    b.exec(TARGET, 60)?.ok("the target that came back")?;
    a.exec(LIVE, 100)?
        .ok("the initiator found the target again")?;
    end_load(&a, load)?;
    a.exec(COPIES, 120)?
        .ok("what the target that came back was given")?;

    a.exec(DISCONNECT, 60)?.ok("disconnecting")?;
    let left = objects(&a)?;
    ensure!(left == base, "at first:\n{base:?}\nand left:\n{left:?}");
    a.exec(CONNECT, 60)?.ok("connecting once more")?;
    let load = start_load(&a)?;
    a.exec(RELOAD, 60)?
        .ok("the initiator's driver out and in")?;
    // Its disk went with it.
    load.finish(LIMIT)?;

    a.exec(CONNECT, 60)?.ok("connecting with the new driver")?;
    let load = start_load(&a)?;
    b.exec(RELOAD, 60)?.ok("the target's driver out and in")?;
    b.exec(LISTEN, 60)?.ok("listening again")?;
    a.exec(LIVE, 100)?
        .ok("the initiator found the target again")?;
    end_load(&a, load)?;
    a.exec(DISCONNECT, 60)?.ok("disconnecting again")?;
    b.exec(NO_TARGET, 60)?.ok("the target's end")?;
    for vm in [&a, &b] {
        quiet_log(vm)?;
    }
    Ok(())
}

/// Writes until told to stop; what fails ends it.
fn start_load(vm: &Vm) -> Result<Running> {
    let mut load = vm.start(
        "rm -f /tmp/stop; echo begun; \
         while [ ! -e /tmp/stop ]; do dd if=/tmp/data of=/dev/nvme0n1 bs=64k conv=nocreat oflag=direct 2>&1 || exit 1; done",
    )?;
    load.wait_for("begun", LIMIT)?;
    // The first of its lines comes when it has written everything once.
    load.wait_for("records out", LIMIT)?;
    Ok(load)
}

/// Stops it; it had no error.
fn end_load(vm: &Vm, load: Running) -> Result<()> {
    vm.exec("touch /tmp/stop", 30)?.ok("touch")?;
    load.finish(LIMIT)?.ok("writing all the while")?;
    Ok(())
}
