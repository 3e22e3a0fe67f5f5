//! What objects cost: time and memory of registrations, queue pairs and completion queues. Commands only: nothing is sent.

use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use conformance::counting::live;
use conformance::layout::MR_EXTENTS;
use conformance::memory::PAGE;
use conformance::node::{KERNEL, Node, QpOptions};
use conformance::side::{Connection, connect};
use conformance::world::{Kind, Options as WorldOptions, World};

use super::end::{PER_COMMAND, region, scattered_region};
use super::process::pin;
use crate::options::Options;
use crate::samples::{Samples, interleaved};
use crate::table::{Axis, Row, Table};

const GIB: u64 = 1 << 30;

/// Measures what is selected.
pub fn table(options: &Options) -> Table {
    let title =
        "what objects cost: commands as the guest driver gives them, carried out by the device";
    let mut table = Table::new("control", title, Axis::Ratio);
    pin(Some(0));
    table.case(options, &["control", "reg_mr"], || registrations(options));
    table.case(options, &["control", "qp"], || cycles(options));
    table.case(options, &["control", "memory"], || memory(options));
    table
}

/// Two devices, linked, whose guests have so many pages.
pub fn world(pages: usize) -> World {
    let options = WorldOptions {
        pages,
        dma_piece: u64::MAX,
        ..Default::default()
    };
    World::with(Kind::Tcp, &options)
}

/// What one registration took.
pub struct Registration {
    /// From the first command to the answer to the last.
    pub register: Duration,
    /// DEREG_MR.
    pub deregister: Duration,
    /// Host memory that the device took for it.
    pub bytes: usize,
}

/// How the memory of a region lies.
#[derive(Clone, Copy)]
pub enum Layout {
    /// In pages none of which follows on another: the worst.
    Scattered,
    /// In one piece, which the driver names as one extent.
    Contiguous,
}

/// Registers `len` bytes and ends that again.
pub fn register(node: &Node, pd: u32, len: u64, layout: Layout) -> Registration {
    let (reg, list) = match layout {
        Layout::Scattered => scattered_region(node, pd, len),
        // From the last piece of memory, which is in a row as long as it is no more than half of it.
        Layout::Contiguous => {
            let first = node.memory.len() / PAGE - (len as usize).div_ceil(PAGE);
            (
                region(pd, len, MR_EXTENTS),
                vec![node.memory.dma(first), len.next_multiple_of(PAGE as u64)],
            )
        }
    };
    let before = live();
    let from = Instant::now();
    let key = node
        .reg_list(KERNEL, reg, &list, PER_COMMAND)
        .expect("a region");
    let register = from.elapsed();
    let bytes = live().saturating_sub(before);
    let from = Instant::now();
    node.dereg_mr(KERNEL, key).expect("DEREG_MR");
    Registration {
        register,
        deregister: from.elapsed(),
        bytes,
    }
}

/// Locks memory that is there: the least that a registration by pinning costs. Seconds.
fn lock(memory: &mut [u8]) -> Result<f64> {
    let from = Instant::now();
    // SAFETY: a range of memory that is ours; locking changes nothing of its contents.
    let locked = unsafe { libc::mlock(memory.as_ptr().cast(), memory.len()) };
    let elapsed = from.elapsed();
    ensure!(locked == 0, "mlock: {}", std::io::Error::last_os_error());
    // SAFETY: as above.
    unsafe { libc::munlock(memory.as_ptr().cast(), memory.len()) };
    Ok(elapsed.as_secs_f64())
}

fn registrations(options: &Options) -> Result<Vec<Row>> {
    // Twice as much as the region, since every other page is none of it.
    let world = world(2 * (GIB as usize / PAGE) + 4096);
    let node: &Arc<Node> = world.a();
    let pd = node.create_pd(KERNEL).expect("a PD");
    let locked = GIB / 4;
    let mut memory = vec![1_u8; locked as usize];
    let seconds = |layout| move || Ok(register(node, pd, GIB, layout).register.as_secs_f64());
    let results = interleaved(
        options.rounds,
        &mut [
            Box::new(seconds(Layout::Scattered)),
            Box::new(seconds(Layout::Contiguous)),
            Box::new(|| Ok(lock(&mut memory)? * (GIB / locked) as f64)),
        ],
    )?;
    let [scattered, contiguous, lock] = [0, 1, 2].map(|n| Samples::of(&results[n], |s| s * 1e3));
    let bytes = |layout| register(node, pd, GIB, layout).bytes as f64;
    Ok(vec![
        Row::measured("reg_mr, scattered pages", &scattered, "ms/GiB")
            .size(GIB)
            .against("mlock", &scattered, &lock),
        Row::measured("reg_mr, one piece", &contiguous, "ms/GiB")
            .size(GIB)
            .against("mlock", &contiguous, &lock),
        Row::new(
            "reg_mr, scattered pages: memory",
            bytes(Layout::Scattered),
            "bytes/GiB",
        )
        .size(GIB),
        Row::new(
            "reg_mr, one piece: memory",
            bytes(Layout::Contiguous),
            "bytes/GiB",
        )
        .size(GIB),
    ])
}

/// Small queues: what is counted is the objects, not their rings.
fn small() -> QpOptions {
    QpOptions {
        sq_entries: 16,
        rq_entries: 16,
        scattered: false,
        ..Default::default()
    }
}

/// Pairs of queue pairs created, connected to one another across the fabric and destroyed, in a second.
fn qp_cycles(world: &World, time: Duration) -> f64 {
    let (a, b) = (world.a(), world.b());
    let ends = [a, b].map(|node| {
        let pd = node.create_pd(KERNEL).expect("a PD");
        (node, pd, node.create_cq(KERNEL, 64, 0).expect("a CQ"))
    });
    let from = Instant::now();
    let mut cycles = 0;
    while from.elapsed() < time {
        let [left, right] = [0, 1].map(|n: usize| {
            let (node, pd, cq) = &ends[n];
            node.create_qp(KERNEL, *pd, cq.cqn, cq.cqn, &small())
                .expect("a QP")
        });
        connect((a, &left), (b, &right), &Connection::default());
        a.destroy_qp(KERNEL, left.qpn).expect("DESTROY_QP");
        b.destroy_qp(KERNEL, right.qpn).expect("DESTROY_QP");
        cycles += 1;
        world.step();
    }
    let rate = f64::from(cycles) / from.elapsed().as_secs_f64();
    for (node, pd, cq) in ends {
        node.destroy_cq(KERNEL, cq.cqn).expect("DESTROY_CQ");
        node.destroy_pd(KERNEL, pd).expect("DESTROY_PD");
    }
    rate
}

/// TCP connections made, accepted and closed in a second.
fn tcp_cycles(time: Duration) -> Result<f64> {
    let listener = TcpListener::bind("127.0.0.1:0").context("listen")?;
    let address = listener.local_addr()?;
    let from = Instant::now();
    let mut cycles = 0;
    while from.elapsed() < time {
        let near = TcpStream::connect(address).context("connect")?;
        let (far, _) = listener.accept().context("accept")?;
        // Reset, so that no port waits for a minute.
        for stream in [&near, &far] {
            abort_on_close(stream)?;
        }
        cycles += 1;
    }
    Ok(f64::from(cycles) / from.elapsed().as_secs_f64())
}

fn abort_on_close(stream: &TcpStream) -> Result<()> {
    use std::os::fd::AsRawFd as _;
    let linger = libc::linger {
        l_onoff: 1,
        l_linger: 0,
    };
    // SAFETY: an open socket, and an option of its size that lives through the call.
    let set = unsafe {
        libc::setsockopt(
            stream.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_LINGER,
            (&raw const linger).cast(),
            size_of::<libc::linger>() as libc::socklen_t,
        )
    };
    ensure!(set == 0, "SO_LINGER: {}", std::io::Error::last_os_error());
    Ok(())
}

fn cycles(options: &Options) -> Result<Vec<Row>> {
    let time = options.time(Duration::from_millis(200));
    let world = world(WorldOptions::default().pages);
    world.settle();
    let results = interleaved(
        options.rounds,
        &mut [
            Box::new(|| Ok(qp_cycles(&world, time))),
            Box::new(|| tcp_cycles(time)),
        ],
    )?;
    let [ours, tcp] = [0, 1].map(|n| Samples::of(&results[n], |rate| *rate));
    let row = Row::measured("create, connect, destroy of both QPs", &ours, "1/s");
    Ok(vec![row.against("tcp connect, accept, close", &ours, &tcp)])
}

/// Kernel memory of one TCP connection, both ends.
fn tcp_memory(count: usize) -> Result<f64> {
    let slab = || -> Result<f64> {
        let text = std::fs::read_to_string("/proc/meminfo").context("/proc/meminfo")?;
        let line = text.lines().find_map(|line| line.strip_prefix("Slab:"));
        let kib: f64 = line
            .context("Slab")?
            .trim()
            .trim_end_matches("kB")
            .trim()
            .parse()?;
        Ok(kib * 1024.0)
    };
    let listener = TcpListener::bind("127.0.0.1:0").context("listen")?;
    let address = listener.local_addr()?;
    let before = slab()?;
    let mut streams = Vec::new();
    for _ in 0..count {
        let near = TcpStream::connect(address).context("connect")?;
        let (far, _) = listener.accept().context("accept")?;
        streams.extend([near, far]);
    }
    let bytes = slab()? - before;
    for stream in &streams {
        abort_on_close(stream)?;
    }
    Ok(bytes / count as f64)
}

fn memory(options: &Options) -> Result<Vec<Row>> {
    const COUNT: usize = 450;
    let tcp = interleaved(options.rounds, &mut [Box::new(|| tcp_memory(COUNT))])?;
    let tcp = Samples::of(&tcp[0], |bytes| *bytes).median();
    let world = world(WorldOptions::default().pages);
    let (a, b) = (world.a(), world.b());
    let mut kept = Vec::new();
    let [pd_a, pd_b] = [a, b].map(|node| node.create_pd(KERNEL).expect("a PD"));
    let before = live();
    for _ in 0..COUNT {
        kept.push(a.create_cq(KERNEL, 64, 0).expect("a CQ"));
    }
    let cq = live() - before;
    let cq_b = b.create_cq(KERNEL, 64, 0).expect("a CQ");
    let mut pairs = Vec::with_capacity(COUNT);
    let before = live();
    for cq in &kept {
        let left = a
            .create_qp(KERNEL, pd_a, cq.cqn, cq.cqn, &small())
            .expect("a QP");
        let right = b
            .create_qp(KERNEL, pd_b, cq_b.cqn, cq_b.cqn, &small())
            .expect("a QP");
        connect((a, &left), (b, &right), &Connection::default());
        pairs.push((left, right));
    }
    let qp = live() - before;
    let each = |bytes: usize| bytes as f64 / COUNT as f64;
    Ok(vec![
        Row::new("a CQ of 64 entries", each(cq), "bytes"),
        Row::new("two connected QPs, both devices", each(qp), "bytes")
            .against_value("a TCP connection, both ends", tcp),
    ])
}
