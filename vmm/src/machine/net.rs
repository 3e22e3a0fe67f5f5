//! Network interfaces.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use api::{NetBackend, NetConfig, OptionError};
use devices::rdma::fabric::ethernet::EthernetPort;
use devices::virtio::net::{Backend, MacAddress, Net, Tap};
use serde_json::json;

use super::Error;
use super::devices::Snapshot;

/// Makes the interface that `config` asks for; one on the fabric takes `port`.
pub fn create(
    config: &NetConfig,
    port: &mut Option<EthernetPort>,
) -> Result<(Net, Snapshot), Error> {
    let wrong = |wrong: String, allowed: &str| OptionError::new("--net", wrong, allowed);
    let mac = config
        .mac
        .ok_or_else(|| wrong("no address".into(), "mac=MAC"))?;
    let backend: Box<dyn Backend> = match &config.backend {
        NetBackend::Tap(name) => Box::new(Tap::open(name).map_err(|e| tap_error(name, &e))?),
        NetBackend::Fabric => Box::new(port.take().ok_or_else(|| {
            wrong(
                "the fabric's port is taken".into(),
                "one interface on the fabric",
            )
        })?),
    };
    let net = Net::new(MacAddress(mac.0), config.mtu, backend)
        .map_err(|e| wrong(e.to_string(), "an MTU in that range"))?;
    let counters = net.counters();
    let snapshot = move || {
        let read = |c: &AtomicU64| c.load(Ordering::Relaxed);
        json!({
            "mac": mac,
            "tx_frames": read(&counters.tx_frames),
            "tx_dropped": read(&counters.tx_dropped),
            "rx_frames": read(&counters.rx_frames),
            "rx_dropped": read(&counters.rx_dropped),
        })
    };
    Ok((net, Box::new(snapshot)))
}

fn tap_error(name: &str, error: &io::Error) -> OptionError {
    OptionError::new(
        "--net",
        format!("tap={name}: {error}"),
        "a tap interface that exists, that you may use and that nobody else uses (ip tuntap add NAME mode tap user USER)",
    )
}
