//! The RDMA device and its fabric.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use api::{FabricKind, MacAddr, OptionError, RdmaConfig, RdmaLimits};
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
    let tcp = fabric(config).map_err(host)?;
    let stats = Arc::<Stats>::default();
    let mut fabric = TcpFabric::new(tcp, stats.clone()).map_err(|e| wrong(e.to_string()))?;
    let port = want_port.then(|| fabric.ethernet_port());
    let port = port.transpose().map_err(host)?;

    let options = options(config, mac, cpus);
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

/// The fabric that is asked for.
fn fabric(config: &RdmaConfig) -> io::Result<TcpConfig> {
    let own = TcpConfig::new()?;
    Ok(TcpConfig {
        listen: config.listen,
        peers: config.peers.clone(),
        lanes: config.lanes.unwrap_or(own.lanes),
        // Larger ones were refused when the option was read.
        send_buffer: config
            .send_buffer
            .map(|size| u32::try_from(size.0).unwrap_or(u32::MAX)),
        ..own
    })
}

/// The device that is asked for, with one completion vector per vCPU, as far as it has them.
fn options(config: &RdmaConfig, mac: MacAddr, cpus: u32) -> RdmaOptions {
    let own = RdmaOptions::new(mac.0);
    RdmaOptions {
        num_vectors: u16::try_from(cpus)
            .unwrap_or(u16::MAX)
            .clamp(1, RdmaOptions::MAX_VECTORS),
        patience: config
            .poll
            .map_or(own.patience, |most| Duration::from_micros(most.into())),
        limits: limits(&config.limits),
        ..own
    }
}

/// The device's own limits, where no other was asked for.
fn limits(asked: &RdmaLimits) -> Limits {
    let own = Limits::default();
    Limits {
        contexts: asked.contexts.unwrap_or(own.contexts),
        pds: asked.pds.unwrap_or(own.pds),
        mrs: asked.mrs.unwrap_or(own.mrs),
        mr_size: asked.mr_size.map_or(own.mr_size, |size| size.0),
        mr_entries: asked.mr_entries.unwrap_or(own.mr_entries),
        fast_reg_pages: asked.fast_reg_pages.unwrap_or(own.fast_reg_pages),
        mws: asked.mws.unwrap_or(own.mws),
        cqs: asked.cqs.unwrap_or(own.cqs),
        cqe: asked.cqe.unwrap_or(own.cqe),
        qps: asked.qps.unwrap_or(own.qps),
        send_wr: asked.send_wr.unwrap_or(own.send_wr),
        recv_wr: asked.recv_wr.unwrap_or(own.recv_wr),
        srqs: asked.srqs.unwrap_or(own.srqs),
        srq_wr: asked.srq_wr.unwrap_or(own.srq_wr),
        xrcds: asked.xrcds.unwrap_or(own.xrcds),
        send_sge: asked.send_sge.unwrap_or(own.send_sge),
        recv_sge: asked.recv_sge.unwrap_or(own.recv_sge),
        inline: asked.inline.unwrap_or(own.inline),
        sq_stride: asked.sq_stride.unwrap_or(own.sq_stride),
        rd_atomic: asked.rd_atomic.unwrap_or(own.rd_atomic),
        gids: asked.gids.unwrap_or(own.gids),
        mcast_groups: asked.mcast_groups.unwrap_or(own.mcast_groups),
        mcast_qps: asked.mcast_qps.unwrap_or(own.mcast_qps),
        msg_size: asked.msg_size.unwrap_or(own.msg_size),
        // What a command of the driver's may be long is between the two of them.
        cmd_bytes: own.cmd_bytes,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows of the table of options in `docs/running.md`: name and default.
    fn documented() -> Vec<(&'static str, &'static str)> {
        let text = include_str!("../../../docs/running.md");
        let (_, table) = text
            .split_once("| option | default |")
            .expect("a table of options");
        table
            .lines()
            .skip(2)
            .map_while(|line| line.strip_prefix("| `"))
            .filter_map(|row| row.split_once("` | "))
            .filter_map(|(name, rest)| Some((name, rest.split_once(" | ")?.0)))
            .collect()
    }

    #[test]
    fn what_is_asked_for_reaches_device_and_fabric() {
        let mac = MacAddr([2, 0, 0, 0, 0, 1]);
        let made = |text: &str| {
            let config = RdmaConfig::parse(text).expect("an option's value");
            let tcp = fabric(&config).expect("a fabric");
            (options(&config, mac, 64), tcp)
        };
        let (device, tcp) = made("fabric=tcp");
        let own = (RdmaOptions::new(mac.0), TcpConfig::new().expect("a fabric"));
        assert_eq!((device.mac, device.num_vectors), (mac.0, 32));
        assert_eq!(device.patience, own.0.patience);
        assert_eq!((tcp.lanes, tcp.send_buffer), (own.1.lanes, None));
        let (device, tcp) = made("fabric=tcp,poll=7,send_buffer=64K,lanes=3,inline=100");
        assert_eq!(device.patience, Duration::from_micros(7));
        assert_eq!(device.limits.inline, 100);
        assert_eq!((tcp.lanes, tcp.send_buffer), (3, Some(65_536)));
        let (device, _) = made("fabric=tcp,poll=0");
        assert_eq!(device.patience, Duration::ZERO);
    }

    #[test]
    fn every_limit_is_documented_with_its_default() {
        let rows = documented();
        let rows: Vec<_> = rows
            .iter()
            .filter(|(name, _)| !name.contains('='))
            .collect();
        let names: Vec<_> = rows.iter().map(|(name, _)| *name).collect();
        assert_eq!(names, RdmaLimits::NAMES);
        let asked: String = rows
            .iter()
            .map(|(name, default)| format!(",{name}={default}"))
            .collect();
        let config = RdmaConfig::parse(&format!("fabric=tcp{asked}")).expect("the defaults");
        assert_eq!(limits(&config.limits), Limits::default());
    }

    #[test]
    fn every_limit_can_be_set() {
        for (n, name) in RdmaLimits::NAMES.iter().enumerate() {
            let config = RdmaConfig::parse(&format!("fabric=tcp,{name}={}", n + 33))
                .unwrap_or_else(|error| panic!("{error}"));
            let limits = limits(&config.limits);
            assert_ne!(limits, Limits::default(), "{name}");
            // The same by JSON.
            let json = format!(r#"{{"fabric": "tcp", "limits": {{"{name}": {}}}}}"#, n + 33);
            let read: RdmaConfig = serde_json::from_str(&json).expect("JSON");
            assert_eq!(read, config);
        }
    }
}
