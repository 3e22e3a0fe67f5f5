//! NFS over RDMA between two VMs, with the kernel's client and server and Debian's nfs-utils.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::faults::{clear_log, quiet_log};
use crate::running::Running;
use crate::tools::objects;
use crate::vm::{Lab, Vm, emulated};

/// What one step may take.
const LIMIT: Duration = Duration::from_secs(60);

/// The server. All that has to outlive a crash is on the second disk: what is exported, and which clients there were.
const SERVE: &str = "set -e
mkdir -p /srv && mount /dev/vdb /srv
mkdir -p /srv/export /srv/state/nfsdcld /run/rpc_pipefs
touch /srv/state/etab /srv/state/rmtab
mount --bind /srv/state /var/lib/nfs
modprobe nfsd
mount -t nfsd nfsd /proc/fs/nfsd
mount -t rpc_pipefs rpc_pipefs /run/rpc_pipefs
nfsdcld
pgrep nfsdcld
echo '/srv/export *(rw,no_root_squash,no_subtree_check,fsid=0)' >/etc/exports
exportfs -a
rpc.mountd --no-nfs-version 3
echo 10 >/proc/fs/nfsd/nfsv4leasetime
echo 10 >/proc/fs/nfsd/nfsv4gracetime
rpc.nfsd --no-nfs-version 3 --rdma=20049 2";

/// All of [`SERVE`] taken away, the modules too.
const STOP_SERVING: &str = "set -ex
rpc.nfsd 0
exportfs -ua
pkill 'rpc.mountd|nfsdcld' || true
for i in $(seq 50); do pgrep 'rpc.mountd|nfsdcld' >/dev/null || break; sleep 0.1; done
for dir in /run/rpc_pipefs /proc/fs/nfsd /var/lib/nfs /srv; do
    for i in $(seq 20); do umount $dir && break; sleep 0.5; done
    ! mountpoint -q $dir
done
for module in nfsd rpcrdma; do
    for i in $(seq 20); do rmmod $module && break; sleep 0.5; done
    ! grep -q \"^$module \" /proc/modules
done";

const MOUNT: &str = "set -e
modprobe nfs
mkdir -p /mnt
mount -t nfs -o vers=4.2,rdma,port=20049 10.0.0.2:/ /mnt
grep -q 'proto=rdma' /proc/mounts";

/// The client's end, and that of its modules.
const UNMOUNT: &str = "set -e
umount /mnt
for module in nfsv4 nfs rpcrdma; do
    for i in $(seq 20); do rmmod $module && break; sleep 0.5; done
    ! grep -q \"^$module \" /proc/modules
done";

/// The disk of the server, gone when the scenario ends.
struct Disk(PathBuf);

impl Disk {
    /// A file of so many MiB without contents.
    fn new(mib: u64) -> Result<Disk> {
        let path = std::env::temp_dir().join(format!("longarm-{}-nfs.raw", std::process::id()));
        File::create(&path)
            .and_then(|file| file.set_len(mib << 20))
            .with_context(|| path.display().to_string())?;
        Ok(Disk(path))
    }

    fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // At worst it stays in the directory for temporary files.
        let _ = std::fs::remove_file(&self.0);
    }
}

/// A file is written, dropped from the cache and read back; mount, server and modules go and come; the server is killed under load and
/// comes back.
pub fn nfs(lab: &Lab) -> Result<()> {
    let mib = size()?;
    let disk = Disk::new(mib + 256)?;
    let (a, mut b) = lab.boot_two(&[], &["--disk", disk.path().to_str().context("UTF-8")?])?;
    for vm in [&a, &b] {
        clear_log(vm)?;
    }
    let base = (objects(&a)?, objects(&b)?);
    b.exec("mkfs.ext4 -q /dev/vdb", 60)?.ok("mkfs.ext4")?;
    b.exec(SERVE, 60)?.ok("the server")?;
    a.exec(MOUNT, 60)?.ok("mounting")?;
    there_and_back(&a, mib)?;

    a.exec(UNMOUNT, 60)?.ok("unmounting")?;
    b.exec(STOP_SERVING, 60)?.ok("the server's end")?;
    let left = (objects(&a)?, objects(&b)?);
    ensure!(left == base, "at first:\n{base:?}\nand left:\n{left:?}");

    b.exec(SERVE, 60)?.ok("the server once more")?;
    a.exec(MOUNT, 60)?.ok("mounting once more")?;
    let load = start_load(&a)?;
    b.crash();
    b = lab.boot(b.spec.clone())?;
    b.ready()?;
    clear_log(&b)?;
    b.exec(SERVE, 60)?.ok("the server that came back")?;
    end_load(&a, load)?;
    a.exec(UNMOUNT, 60)?.ok("unmounting at the end")?;
    b.exec(STOP_SERVING, 60)?
        .ok("the end of the server that came back")?;
    for vm in [&a, &b] {
        quiet_log(vm)?;
    }
    Ok(())
}

/// MiB to write: LONGARM_NFS_MIB, else 1 GiB where that takes seconds.
fn size() -> Result<u64> {
    match std::env::var("LONGARM_NFS_MIB") {
        Ok(mib) => mib.parse().context("LONGARM_NFS_MIB"),
        Err(_) if emulated() => Ok(64),
        Err(_) => Ok(1024),
    }
}

/// A file written, then read when nothing of it is in the client's cache any more.
fn there_and_back(a: &Vm, mib: u64) -> Result<()> {
    let started = Instant::now();
    let write = format!(
        "dd if=/dev/urandom bs=1M count={mib} iflag=fullblock 2>/dev/null | tee /mnt/data | sha256sum && sync -f /mnt/data"
    );
    let written = a.exec(&write, 900)?.ok("writing")?.stdout;
    let wrote = started.elapsed();
    // The server fetches what is written by READ, and sends what is read by WRITE, which is counted where it arrives.
    let before = a.counter("rx_bytes")?;
    let started = Instant::now();
    let read = a
        .exec(
            "echo 3 >/proc/sys/vm/drop_caches && sha256sum </mnt/data",
            900,
        )?
        .ok("reading")?
        .stdout;
    ensure!(read == written, "written {written}, read back {read}");
    let moved = a.counter("rx_bytes")? - before;
    ensure!(
        moved >= mib << 20,
        "{mib} MiB were read, {moved} bytes came by RDMA"
    );
    println!(
        "{mib} MiB written in {:.1} s, read back in {:.1} s, checksums and all",
        wrote.as_secs_f64(),
        started.elapsed().as_secs_f64()
    );
    Ok(())
}

/// Writes a file over and over until told to stop; what fails ends it.
fn start_load(vm: &Vm) -> Result<Running> {
    let mut load = vm.start(
        "dd if=/dev/urandom of=/tmp/load bs=1M count=16 2>/dev/null; \
         while [ ! -e /tmp/stop ]; do dd if=/tmp/load of=/mnt/load bs=256k conv=fsync,notrunc 2>&1 || exit 1; done",
    )?;
    // The first such line comes when it has written everything once.
    load.wait_for("records out", LIMIT)?;
    Ok(load)
}

/// Stops it: it had no error, and the file is what was written.
fn end_load(vm: &Vm, load: Running) -> Result<()> {
    vm.exec("touch /tmp/stop", 30)?.ok("touch")?;
    // It tries again after longer and longer pauses.
    load.finish(Duration::from_secs(200))?
        .ok("writing to a server that went and came back")?;
    vm.exec(
        "echo 3 >/proc/sys/vm/drop_caches && cmp /tmp/load /mnt/load",
        60,
    )?
    .ok("what the server has after that")?;
    Ok(())
}
