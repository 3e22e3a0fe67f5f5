//! One or two guests on a fabric.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use devices::rdma::device::{DeviceConfig, RdmaDevice};
use devices::rdma::fabric::Fabric;
use devices::rdma::fabric::loopback::LoopbackFabric;
use devices::rdma::fabric::pair::{PairControl, pair};
use devices::rdma::fabric::tcp::{TcpConfig, TcpFabric};
use devices::rdma::limits::Limits;
use devices::rdma::stats::Stats;

use crate::doorbell::Doorbells;
use crate::events::Events;
use crate::host::{Host, OffsetDma, Sink};
use crate::memory::{GuestMemory, PAGE};
use crate::node::Node;
use crate::watchdog::Watchdog;

/// Fabrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Both sides on one device.
    Loopback,
    /// Two devices in this process.
    Pair,
    /// Two devices over TCP.
    Tcp,
}

/// How the nodes are to be.
#[derive(Clone, Debug)]
pub struct Options {
    /// Pages of RAM of each.
    pub pages: usize,
    /// A thread for each device, which polls so long after work before it sleeps; None: stepped.
    pub threads: Option<Duration>,
    /// What each device allows.
    pub limits: Limits,
    /// Features negotiated.
    pub features: u64,
    /// The platform's translation gives pieces that end at multiples of this many bytes ([`OffsetDma`]).
    pub dma_piece: u64,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            // 256 MiB of address space; only what is touched costs memory.
            pages: 64 << 10,
            threads: None,
            limits: Limits::default(),
            features: DeviceConfig::FEATURES,
            // Every 16th page: nobody may take one DMA range for one host range.
            dma_piece: (16 * PAGE) as u64,
        }
    }
}

/// One or two nodes on a fabric.
pub struct World {
    nodes: Vec<Arc<Node>>,
    control: Option<PairControl>,
    kind: Kind,
}

/// How long anything that a test waits for may take; generous for a loaded machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Rounds in which nothing may come before nothing is to come: time alone says little on a machine that has none for us.
pub(crate) const QUIET_ROUNDS: u32 = 20;

/// What has not come after this time without work was lost with a link.
const UNDER_WAY: Duration = Duration::from_secs(3);

/// The GID of the node `n`.
pub fn gid(n: u8) -> [u8; 16] {
    [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 77, 0, n + 1]
}

/// A node over a fabric, whose GID it announces.
pub fn node(n: u8, fabric: Box<dyn Fabric>, stats: Arc<Stats>, options: &Options) -> Arc<Node> {
    let memory = GuestMemory::new(options.pages);
    let events = Arc::new(Events::default());
    let bells = Arc::new(Doorbells::new(options.limits.doorbell_pages()));
    let config = DeviceConfig {
        mac: [2, 0, 0, 0, 0, n + 1],
        num_vectors: 2,
        limits: options.limits.clone(),
        features: options.features,
    };
    let dma = Arc::new(OffsetDma {
        memory: memory.clone(),
        piece: options.dma_piece,
    });
    let device = RdmaDevice::with_stats(config, dma, fabric, Box::new(Sink(events.clone())), stats);
    let host = match options.threads {
        None => Host::stepped(device, bells.clone()),
        Some(spin) => Host::threaded(device, bells.clone(), spin),
    };
    let node = Node::new(memory, host, bells, events, gid(n));
    node.add_gid(0, gid(n)).expect("ADD_GID");
    Arc::new(node)
}

impl World {
    /// Nodes that are stepped.
    pub fn new(kind: Kind) -> World {
        World::with(kind, &Options::default())
    }

    /// Nodes as asked for.
    pub fn with(kind: Kind, options: &Options) -> World {
        let mut control = None;
        let fabrics: Vec<(Box<dyn Fabric>, Arc<Stats>)> = match kind {
            Kind::Loopback => vec![(
                Box::new(LoopbackFabric::new().expect("a fabric")),
                Arc::default(),
            )],
            Kind::Pair => {
                let (left, right, c) = pair().expect("a pair");
                control = Some(c);
                vec![
                    (Box::new(left), Arc::default()),
                    (Box::new(right), Arc::default()),
                ]
            }
            Kind::Tcp => tcp(),
        };
        let nodes = fabrics
            .into_iter()
            .enumerate()
            .map(|(n, (fabric, stats))| node(n as u8, fabric, stats, options))
            .collect();
        World {
            nodes,
            control,
            kind,
        }
    }

    /// A world of nodes that are there already.
    pub fn of(nodes: Vec<Arc<Node>>, kind: Kind) -> World {
        World {
            nodes,
            control: None,
            kind,
        }
    }

    /// The first node.
    pub fn a(&self) -> &Arc<Node> {
        &self.nodes[0]
    }

    /// The other node; over loopback, the same.
    pub fn b(&self) -> &Arc<Node> {
        self.nodes.last().expect("a world has nodes")
    }

    /// All nodes.
    pub fn nodes(&self) -> &[Arc<Node>] {
        &self.nodes
    }

    /// Which fabric.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Orders faults of a pair.
    pub fn control(&self) -> &PairControl {
        self.control.as_ref().expect("only a pair takes orders")
    }

    /// One round of every device. True if there was work.
    pub fn step(&self) -> bool {
        let mut worked = false;
        for node in &self.nodes {
            worked |= node.host.step();
        }
        if !worked {
            // Nothing to do but wait for a socket, a timer or a thread.
            std::thread::sleep(Duration::from_micros(20));
        }
        worked
    }

    /// Steps until `look` finds what it looks for.
    pub fn until<T>(&self, what: &str, mut look: impl FnMut() -> Option<T>) -> T {
        let started = Instant::now();
        loop {
            if let Some(found) = look() {
                return found;
            }
            assert!(
                started.elapsed() < PATIENCE,
                "waited {PATIENCE:?} in vain for: {what}"
            );
            self.step();
        }
    }

    /// Steps until nothing has happened for a while and for some rounds: whatever was to come has come.
    pub fn settle(&self) {
        let quiet = match self.kind {
            Kind::Loopback | Kind::Pair => Duration::from_millis(3),
            Kind::Tcp => Duration::from_millis(20),
        };
        let started = Instant::now();
        let (mut last_work, mut rounds) = (Instant::now(), 0);
        let resting = |since: Duration| since >= UNDER_WAY || since >= quiet && !self.under_way();
        while rounds < QUIET_ROUNDS || !resting(last_work.elapsed()) {
            assert!(
                started.elapsed() < PATIENCE,
                "the devices do not come to rest"
            );
            rounds += 1;
            if self.step() {
                (last_work, rounds) = (Instant::now(), 0);
            }
        }
    }

    /// Whether devices that are stepped have yet to find each other, or to take in what was sent, because the host had no time to carry
    /// it.
    fn under_way(&self) -> bool {
        if self.kind != Kind::Tcp {
            return false;
        }
        let (mut missing, mut sent, mut taken) = (0, 0, 0);
        for node in &self.nodes {
            let Host::Stepped(_) = &node.host else {
                return false;
            };
            let peers = node
                .host
                .with_device(|device| device.stats().snapshot().peers);
            let up = peers
                .values()
                .filter(|peer| peer.links_up > peer.links_lost);
            missing += (self.nodes.len() - 1).saturating_sub(up.count());
            sent += peers.values().map(|peer| peer.tx_bytes).sum::<u64>();
            taken += peers.values().map(|peer| peer.rx_bytes).sum::<u64>();
        }
        missing > 0 || sent != taken
    }

    /// As [`World::settle`]: the devices have gone to sleep.
    pub fn quiet(&self) {
        self.settle();
    }

    /// Plants canaries in every node's free memory.
    pub fn plant_canaries(&self) {
        for node in &self.nodes {
            node.memory.plant_canaries();
        }
    }
}

/// A fabric over TCP that listens on a port of 127.0.0.1 and dials `peers`, its counters, and its address.
pub fn tcp_fabric(peers: &[SocketAddr]) -> (Box<dyn Fabric>, Arc<Stats>, SocketAddr) {
    tcp_fabric_with(peers, None)
}

/// The same, with so many connections to each peer.
pub fn tcp_fabric_with(
    peers: &[SocketAddr],
    lanes: Option<u8>,
) -> (Box<dyn Fabric>, Arc<Stats>, SocketAddr) {
    let mut config = TcpConfig::new().expect("a configuration");
    config.listen = Some(SocketAddr::from(([127, 0, 0, 1], 0)));
    config.peers = peers.to_vec();
    config.lanes = lanes.unwrap_or(config.lanes);
    // Who steps devices leaves one alone while it looks at another; a peer that dies closes its sockets.
    config.timing.loss = Duration::from_secs(3600);
    let stats = Arc::new(Stats::default());
    let fabric = TcpFabric::new(config, stats.clone()).expect("a fabric over TCP");
    let address = fabric.local_address().expect("it listens");
    (Box::new(fabric), stats, address)
}

fn tcp() -> Vec<(Box<dyn Fabric>, Arc<Stats>)> {
    let (left, left_stats, address) = tcp_fabric(&[]);
    let (right, right_stats, _) = tcp_fabric(&[address]);
    vec![(left, left_stats), (right, right_stats)]
}

/// Runs a test in a world of its own, under a watchdog, and looks at what every test must leave behind.
pub fn run(name: &str, kind: Kind, body: fn(&World)) {
    let _watchdog = Watchdog::new(&format!("{name} over {kind:?}"));
    // Little enough that canaries in all of it are quickly planted and looked at.
    let options = Options {
        pages: 8192,
        ..Default::default()
    };
    let world = World::with(kind, &options);
    body(&world);
    world.settle();
}
