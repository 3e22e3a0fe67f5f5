//! Addresses of network interfaces that were given none.

use std::fs::File;
use std::io::{self, Read};

use api::{MacAddr, VmConfig};

/// Gives every network interface of `config` an address: random and locally administered where none was given, so that two
/// machines never share one by accident. The RDMA device gets that of its paired interface.
///
/// # Errors
/// When the host gives no random bytes.
pub fn assign(config: &mut VmConfig) -> io::Result<()> {
    let mut random = None;
    for net in config.net.iter_mut().filter(|n| n.mac.is_none()) {
        let random = match &mut random {
            Some(random) => random,
            none => none.insert(File::open("/dev/urandom")?),
        };
        let mut bytes = [0; 6];
        random.read_exact(&mut bytes)?;
        net.mac = Some(MacAddr::local(bytes));
    }
    let first = config.net.first().and_then(|n| n.mac);
    if let Some(rdma) = &mut config.rdma {
        rdma.mac = rdma.mac.or(first);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::{NetConfig, RdmaConfig};

    #[test]
    fn each_interface_gets_its_own_and_rdma_that_of_the_first() {
        let mut config = VmConfig::new("k");
        config.net = vec![NetConfig::parse("tap=a").unwrap(); 2];
        config.rdma = Some(RdmaConfig::parse("fabric=tcp").unwrap());
        assign(&mut config).unwrap();
        let macs: Vec<_> = config.net.iter().map(|n| n.mac.unwrap()).collect();
        assert_ne!(macs[0], macs[1]);
        assert!(macs.iter().all(|m| m.0[0] & 3 == 2));
        assert_eq!(config.rdma.unwrap().mac, Some(macs[0]));
    }

    #[test]
    fn what_was_given_stays() {
        let mut config = VmConfig::new("k");
        config.net = vec![NetConfig::parse("fabric,mac=02:00:00:00:00:07").unwrap()];
        config.rdma = Some(RdmaConfig::parse("fabric=tcp,mac=02:00:00:00:00:08").unwrap());
        assign(&mut config).unwrap();
        assert_eq!(config.net[0].mac, "02:00:00:00:00:07".parse().ok());
        assert_eq!(config.rdma.unwrap().mac, "02:00:00:00:00:08".parse().ok());
    }
}
