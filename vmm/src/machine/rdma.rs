//! The RDMA device and its fabric.

use std::sync::Arc;

use api::{FabricKind, OptionError, RdmaConfig, RdmaLimits};
use devices::rdma::Limits;
use devices::rdma::fabric::ethernet::EthernetPort;
use devices::rdma::fabric::tcp::{TcpConfig, TcpFabric};
use devices::rdma::stats::Stats;
use devices::virtio::rdma::{RdmaOptions, VirtioRdma};
use serde_json::{Value, json};

use super::Error;
use super::devices::Snapshot;

/// An RDMA device that is ready to be put on a bus.
pub struct Rdma {
    /// The device.
    pub device: VirtioRdma,
    /// The fabric's port for the network interface, if one was asked for.
    pub port: Option<EthernetPort>,
    /// The device's and the fabric's counters.
    pub snapshot: Snapshot,
}

const _: () = assert!(api::MAX_LANES == devices::rdma::fabric::tcp::MAX_LANES);

/// Makes the device that `config` asks for, for a machine of `cpus` vCPUs. The fabric begins to look for its peers at once.
pub fn create(config: &RdmaConfig, cpus: u32, want_port: bool) -> Result<Rdma, Error> {
    let wrong = |wrong: String| {
        Error::Option(OptionError::new(
            "--rdma",
            wrong,
            "what `longarm help` lists for it",
        ))
    };
    let host = |source| Error::Host {
        what: "--rdma",
        source,
    };
    let mac = config
        .mac
        .ok_or_else(|| wrong("no address to pair the device by".into()))?;
    let FabricKind::Tcp = config.fabric;
    let mut tcp = TcpConfig::new().map_err(host)?;
    tcp.listen = config.listen;
    tcp.peers = config.peers.clone();
    tcp.lanes = config.lanes.unwrap_or(tcp.lanes);
    let stats = Arc::<Stats>::default();
    let mut fabric = TcpFabric::new(tcp, stats.clone()).map_err(|e| wrong(e.to_string()))?;
    let port = want_port.then(|| fabric.ethernet_port());
    let port = port.transpose().map_err(host)?;

    let mut options = RdmaOptions::new(mac.0);
    // One completion vector per vCPU, as far as the device has them.
    options.num_vectors = u16::try_from(cpus)
        .unwrap_or(u16::MAX)
        .clamp(1, RdmaOptions::MAX_VECTORS);
    options.limits = limits(&config.limits);
    options.limits.check().map_err(wrong)?;
    let device = VirtioRdma::new(options, Box::new(fabric), stats.clone()).map_err(host)?;
    let snapshot = move || {
        // A map of numbers always has a JSON form.
        let mut all = serde_json::to_value(stats.snapshot()).unwrap_or_default();
        if let Value::Object(all) = &mut all {
            all.insert("mac".into(), json!(mac));
        }
        all
    };
    Ok(Rdma {
        device,
        port,
        snapshot: Box::new(snapshot),
    })
}

fn limits(asked: &RdmaLimits) -> Limits {
    let mut limits = Limits::default();
    for (limit, asked) in [
        (&mut limits.contexts, asked.contexts),
        (&mut limits.pds, asked.pds),
        (&mut limits.mrs, asked.mrs),
        (&mut limits.cqs, asked.cqs),
        (&mut limits.cqe, asked.cqe),
        (&mut limits.qps, asked.qps),
        (&mut limits.send_wr, asked.send_wr),
        (&mut limits.recv_wr, asked.recv_wr),
        (&mut limits.send_sge, asked.send_sge),
        (&mut limits.recv_sge, asked.recv_sge),
        (&mut limits.gids, asked.gids),
        (&mut limits.msg_size, asked.msg_size),
    ] {
        *limit = asked.unwrap_or(*limit);
    }
    limits
}
