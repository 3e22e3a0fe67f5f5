//! Verbs objects as the guest's kernel keeps account of them: what the resource tracker, the counters and the limits say, and how
//! objects end. Stock tools say it, and `verbs-life` (tests/guest) where there is none.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::account::Account;
use crate::meeting::{Meeting, Ready};
use crate::vm::{Lab, Vm};

/// Where `verbs-life` lies in a guest.
pub const VERBS_LIFE: &str = "/tmp/verbs-life";

/// Puts `verbs-life` into a guest.
pub fn install_verbs_life(lab: &Lab, vm: &Vm) -> Result<()> {
    vm.install(&lab.longarm.with_file_name("verbs-life"), VERBS_LIFE)
}

/// The checks of one VM, its queue pairs among themselves.
pub fn check_objects(lab: &Lab, a: &Vm, failed: &mut Vec<&'static str>) -> Result<()> {
    install_verbs_life(lab, a)?;
    let base = Account::of(a)?;
    checks!(failed, (a);
        semantics_27_a_cq_waits_for_acknowledged_events,
        semantics_41_memory_of_a_process,
        tracker_shows_every_type,
        counters_are_those_of_the_device,
        device_takes_another_name,
        cgroup_limits_handles_and_objects,
    );
    base.is_met_again(a)
}

fn life(vm: &Vm, command: &str) -> Result<()> {
    let what = format!("{VERBS_LIFE} {command}");
    vm.exec(&what, 60)?.ok(&what).map(drop)
}

/// `ibv_destroy_cq` ends when the events that were given are acknowledged and not before; one that nobody asked for, and a process
/// that ends with some open, hold nothing up.
fn semantics_27_a_cq_waits_for_acknowledged_events(a: &Vm) -> Result<()> {
    let base = Account::of(a)?;
    for command in [
        "unacknowledged-events",
        "unread-events",
        "leave-with-events",
    ] {
        life(a, command)?;
    }
    base.is_met_again(a)
}

/// The limit of locked memory is ENOMEM; what `ibv_rereg_mr` says of a refusal; memory of a process that forks, and of its child.
fn semantics_41_memory_of_a_process(a: &Vm) -> Result<()> {
    for command in ["memory-limit", "rereg-codes", "fork-and-exec"] {
        life(a, command)?;
    }
    Ok(())
}

/// Memory of another driver (udmabuf), registered by its dma-buf: WRITE and READ between two such regions of two machines.
pub fn dma_buf_between_machines(a: &Vm, b: &Vm) -> Result<()> {
    let meeting = Meeting {
        server: format!("{VERBS_LIFE} dmabuf 18760"),
        client: format!("{VERBS_LIFE} dmabuf 18760 @server"),
        ready: Ready::Tcp(18_760),
        serves_on: false,
    };
    meeting.between(a, b, Duration::from_secs(60))?.all_well()
}

/// Starts a `verbs-life hold` whose shell ends it when it reads a line, in the cgroup given.
fn holding(sets: u32) -> String {
    format!(
        "{VERBS_LIFE} hold {sets} >/tmp/held & held=$!; until grep -q holding /tmp/held; do \
         kill -0 $held 2>/dev/null || exit 1; sleep 0.05; done; "
    )
}

/// `rdma resource show`, for every type and with the driver's details.
fn tracker_shows_every_type(a: &Vm) -> Result<()> {
    let script = format!(
        "{} rping -s -a 10.0.0.1 & server=$!; until rdma resource show cm_id | grep -q LISTEN; do sleep 0.05; done; \
         for type in pd cq qp mr cm_id ctx srq; do echo \"type $type\"; rdma -dd resource show $type; done; \
         kill $held $server",
        holding(2)
    );
    let text = a.exec(&script, 60)?.ok("rdma resource show")?.stdout;
    for (kind, of_whom, count, words) in TRACKED {
        let lines: Vec<&str> = text
            .lines()
            .skip_while(|line| line.trim() != format!("type {kind}"))
            .skip(1)
            .take_while(|line| !line.starts_with("type "))
            .collect();
        // A detail of the driver's may stand on a line of its own, below the object's.
        let block = lines.join(" ");
        let found: Vec<&str> = block
            .split(" dev ")
            .flat_map(|part| part.split("link "))
            .filter(|object| object.contains(&format!("comm {of_whom}")))
            .collect();
        ensure!(
            found.len() == *count,
            "{kind}: {} of {of_whom} instead of {count} in\n{text}",
            found.len()
        );
        for word in *words {
            ensure!(
                found.iter().all(|object| object.contains(word)),
                "{kind}: no {word:?} in\n{text}"
            );
        }
    }
    Ok(())
}

/// Type, name of the process, objects of it, and what must be said of each.
type Tracked = (&'static str, &'static str, usize, &'static [&'static str]);

const TRACKED: &[Tracked] = &[
    ("pd", "verbs-life", 2, &["pdn ", "users 3", "pid ", "ctxn "]),
    (
        "cq",
        "verbs-life",
        2,
        &[
            "cqn ",
            "cqe 16",
            "users 2",
            "drv_handle ",
            "drv_context ",
            "drv_entries 16",
            "drv_ring_pages ",
        ],
    ),
    (
        "qp",
        "verbs-life",
        2,
        &[
            "type RC",
            "state RESET",
            "drv_context ",
            "drv_send_wr 16",
            "drv_recv_wr 0",
            "drv_send_sge ",
            "drv_inline_data ",
            "drv_ring_pages ",
        ],
    ),
    (
        "mr",
        "verbs-life",
        2,
        &[
            "mrlen 4096",
            "drv_handle 0x",
            "drv_context ",
            "drv_access 0x1",
        ],
    ),
    (
        "srq",
        "verbs-life",
        2,
        &[
            "type BASIC",
            "drv_handle ",
            "drv_context ",
            "drv_entries 16",
            "drv_stride ",
        ],
    ),
    ("ctx", "verbs-life", 1, &["ctxn ", "pid "]),
    ("cm_id", "rping", 1, &["state LISTEN", "src-addr 10.0.0.1:"]),
];

/// `rdma statistic` and `hw_counters` say what the device counts, all of it, and it moves; the port's attributes say what is theirs.
fn counters_are_those_of_the_device(a: &Vm) -> Result<()> {
    life(a, "qkey-violations")?;
    let before = statistic(a)?;
    life(a, "fork-and-exec")?;
    let after = statistic(a)?;
    ensure!(
        after.get("completions") > before.get("completions"),
        "completions: {before:?}, then {after:?}"
    );
    let stats = a.stats()?;
    let device: BTreeMap<String, u64> = serde_json::from_value(
        stats
            .pointer("/rdma/0/device")
            .context("no device in the statistics")?
            .clone(),
    )?;
    ensure!(
        after == device,
        "the guest says {after:?}, the monitor {device:?}"
    );
    let files = a
        .exec(
            "cd /sys/class/infiniband/*/ports/1/hw_counters && grep . * | grep -v lifespan",
            10,
        )?
        .ok("hw_counters")?;
    let files: BTreeMap<String, u64> = files
        .stdout
        .lines()
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| Ok((name.to_owned(), value.parse()?)))
        .collect::<Result<_>>()?;
    ensure!(
        files == device,
        "hw_counters say {files:?}, the monitor {device:?}"
    );
    Ok(())
}

fn statistic(vm: &Vm) -> Result<BTreeMap<String, u64>> {
    let text = vm
        .exec("rdma statistic show", 10)?
        .ok("rdma statistic show")?
        .stdout;
    let words: Vec<&str> = text.split_whitespace().skip(2).collect();
    words
        .chunks_exact(2)
        .map(|pair| Ok((pair[0].to_owned(), pair[1].parse()?)))
        .collect()
}

/// `rdma dev set NAME name OTHER`, with objects open; programs find the device by either name.
fn device_takes_another_name(a: &Vm) -> Result<()> {
    let script = format!(
        "set -e; {} rdma dev set vrdma0 name other; rdma dev show other; ls -d /sys/class/infiniband/other; \
         ibv_devinfo -d other | grep -q PORT_ACTIVE; rdma -dd resource show qp | grep verbs-life; \
         {VERBS_LIFE} fork-and-exec; kill $held; rdma dev set other name vrdma0; {VERBS_LIFE} fork-and-exec",
        holding(1)
    );
    a.exec(&script, 60)?.ok("another name").map(drop)
}

/// The rdma controller counts contexts and objects, refuses what is over the limit with EAGAIN, and forgets what is gone.
fn cgroup_limits_handles_and_objects(a: &Vm) -> Result<()> {
    // A set has five objects: PD, CQ, MR, SRQ, QP; and the kernel counts the file of asynchronous events as one.
    let script = format!(
        "set -e; cd /sys/fs/cgroup; grep -q rdma cgroup.subtree_control || echo +rdma >cgroup.subtree_control; \
         mkdir limited; cd limited; echo 'vrdma0 hca_handle=1 hca_object=max' >rdma.max; echo $$ >cgroup.procs; \
         {} grep -q 'vrdma0 hca_handle=1 hca_object=[1-9]' rdma.current; \
         ! {VERBS_LIFE} hold 1 2>/tmp/said || exit 1; grep 'errno 11:' /tmp/said; \
         kill $held; wait $held || true; \
         until grep -q 'hca_handle=0 hca_object=0' rdma.current; do sleep 0.1; done; \
         echo 'vrdma0 hca_handle=max hca_object=4' >rdma.max; \
         ! {VERBS_LIFE} hold 1 2>/tmp/said || exit 1; grep 'errno 11:' /tmp/said; \
         until grep -q 'hca_handle=0 hca_object=0' rdma.current; do sleep 0.1; done; \
         echo 'vrdma0 hca_handle=max hca_object=max' >rdma.max; {VERBS_LIFE} fork-and-exec; \
         echo $$ >../cgroup.procs",
        holding(1)
    );
    a.exec(&script, 60)?.ok("the rdma controller")?;
    a.eventually("rmdir /sys/fs/cgroup/limited")
}

/// The process of a VM that holds objects until its device is gone.
pub fn holder(vm: &Vm) -> Result<crate::running::Running> {
    let mut holder = vm.start(&format!("{VERBS_LIFE} hold"))?;
    holder.wait_for("holding", Duration::from_secs(30))?;
    Ok(holder)
}
