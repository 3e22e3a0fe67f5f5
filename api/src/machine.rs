//! The whole machine.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::{
    ByteSize, DiskConfig, MemoryConfig, NetBackend, NetConfig, OptionError, RdmaConfig,
    SerialConfig, VsockConfig,
};

/// Most vCPUs.
pub const MAX_CPUS: u32 = 32;
/// Least memory, bytes.
pub const MIN_MEMORY: u64 = 128 << 20;
/// Most memory, bytes.
pub const MAX_MEMORY: u64 = 512 << 30;
/// Most disks.
pub const MAX_DISKS: usize = 8;
/// Most network interfaces.
pub const MAX_NETS: usize = 8;

const HUGE_PAGE: u64 = 2 << 20;
const PAGE: u64 = 4096;

/// What `longarm run` is asked to run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VmConfig {
    /// The kernel: a bzImage or an ELF image.
    pub kernel: PathBuf,
    /// The initial RAM disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub initrd: Option<PathBuf>,
    /// The kernel's command line; a sensible one for the devices given otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cmdline: Option<String>,
    /// Words after the command line, given or default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub append: Option<String>,
    /// vCPUs.
    #[serde(default = "one_cpu")]
    pub cpus: u32,
    /// Memory.
    #[serde(default)]
    pub memory: MemoryConfig,
    /// Disks, in order.
    #[serde(default)]
    pub disks: Vec<DiskConfig>,
    /// Network interfaces, in order.
    #[serde(default)]
    pub net: Vec<NetConfig>,
    /// The RDMA device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rdma: Option<RdmaConfig>,
    /// The vsock device; `exec` and `control` bring one by themselves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vsock: Option<VsockConfig>,
    /// The serial console: on stdio, or off with `exec`, unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub serial: Option<SerialConfig>,
    /// Where to put the control socket.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub control: Option<PathBuf>,
    /// A command to run in the guest; the machine ends with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exec: Option<String>,
    /// Seconds after which the machine is stopped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<u64>,
}

fn one_cpu() -> u32 {
    1
}

impl VmConfig {
    /// A machine that boots `kernel`, everything else at its default.
    pub fn new(kernel: impl Into<PathBuf>) -> Self {
        Self {
            kernel: kernel.into(),
            initrd: None,
            cmdline: None,
            append: None,
            cpus: 1,
            memory: MemoryConfig::default(),
            disks: Vec::new(),
            net: Vec::new(),
            rdma: None,
            vsock: None,
            serial: None,
            control: None,
            exec: None,
            timeout: None,
        }
    }

    /// Checks everything that can be checked without opening a file.
    pub fn validate(&self) -> Result<(), OptionError> {
        if !(1..=MAX_CPUS).contains(&self.cpus) {
            return Err(OptionError::new(
                "--cpus",
                self.cpus.to_string(),
                format!("1 to {MAX_CPUS}"),
            ));
        }
        let ByteSize(size) = self.memory.size;
        let unit = if self.memory.hugepages {
            HUGE_PAGE
        } else {
            PAGE
        };
        if !(MIN_MEMORY..=MAX_MEMORY).contains(&size) || !size.is_multiple_of(unit) {
            return Err(OptionError::new(
                "--memory",
                self.memory.size.to_string(),
                format!(
                    "{} to {}, a multiple of {}",
                    ByteSize(MIN_MEMORY),
                    ByteSize(MAX_MEMORY),
                    ByteSize(unit)
                ),
            ));
        }
        at_most("--disk", self.disks.len(), MAX_DISKS)?;
        at_most("--net", self.net.len(), MAX_NETS)?;
        for net in &self.net {
            net.validate()?;
            if net.backend == NetBackend::Fabric && self.rdma.is_none() {
                return Err(OptionError::new(
                    "--net",
                    "fabric without a fabric",
                    "fabric together with --rdma fabric=..., which carries it; or tap=NAME",
                ));
            }
        }
        let on_fabric = self.net.iter().filter(|n| n.backend == NetBackend::Fabric);
        if on_fabric.count() > 1 {
            return Err(OptionError::new(
                "--net",
                "fabric given twice",
                "one interface on the fabric",
            ));
        }
        if let Some(rdma) = &self.rdma {
            rdma.validate()?;
            if rdma.mac.is_none() && self.net.is_empty() {
                return Err(OptionError::new(
                    "--rdma",
                    "no network interface to pair the device with",
                    "--net beside it, or mac=MAC of an interface the guest gets otherwise",
                ));
            }
        }
        if self.exec.as_deref().is_some_and(|c| c.trim().is_empty()) {
            return Err(OptionError::new(
                "--exec",
                "empty command",
                "a shell command",
            ));
        }
        if self.timeout == Some(0) {
            return Err(OptionError::new("--timeout", "0", "seconds, 1 or more"));
        }
        Ok(())
    }

    /// Where the serial console leads when nothing is said: a machine that runs a command keeps its output clean.
    pub fn serial(&self) -> SerialConfig {
        match (&self.serial, &self.exec) {
            (Some(serial), _) => serial.clone(),
            (None, Some(_)) => SerialConfig::Off,
            (None, None) => SerialConfig::Stdio,
        }
    }

    /// The vsock device the machine needs, if any.
    pub fn vsock(&self) -> Option<VsockConfig> {
        // Commands reach the guest through it.
        let commands = self.exec.is_some() || self.control.is_some();
        self.vsock.clone().or(commands.then_some(VsockConfig::Auto))
    }

    /// The command line the kernel gets: the one given, or one that uses the devices there are, and what is to be appended.
    pub fn cmdline(&self) -> String {
        let base = self
            .cmdline
            .clone()
            .unwrap_or_else(|| self.default_cmdline());
        match &self.append {
            Some(words) => format!("{base} {words}"),
            None => base,
        }
    }

    /// A panic reboots at once, which ends the machine. `pci=noearly` leaves out a search for AGP bridges by port access, over
    /// all buses, that kernels do on old AMD models.
    fn default_cmdline(&self) -> String {
        let mut cmdline = String::from("console=ttyS0 panic=-1 pci=noearly");
        if self.exec.is_some() {
            cmdline.push_str(" quiet");
        }
        if let Some(disk) = self.disks.first() {
            cmdline.push_str(" root=/dev/vda ");
            cmdline.push_str(if disk.readonly { "ro" } else { "rw" });
        }
        cmdline
    }
}

fn at_most(option: &str, have: usize, most: usize) -> Result<(), OptionError> {
    if have > most {
        return Err(OptionError::new(
            option,
            format!("given {have} times"),
            format!("at most {most} times"),
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(change: impl FnOnce(&mut VmConfig)) -> OptionError {
        let mut config = VmConfig::new("vmlinuz");
        change(&mut config);
        config.validate().unwrap_err()
    }

    fn refused_rdma(text: &str) -> OptionError {
        RdmaConfig::parse(text).unwrap().validate().unwrap_err()
    }

    #[test]
    fn the_default_machine_is_valid() {
        VmConfig::new("vmlinuz").validate().unwrap();
    }

    #[test]
    fn every_bad_value_names_its_option_and_what_is_allowed() {
        let cases = [
            refused(|c| c.cpus = 0),
            refused(|c| c.cpus = 33),
            refused(|c| c.memory.size = ByteSize(127 << 20)),
            refused(|c| c.memory.size = ByteSize((128 << 20) + 1)),
            refused(|c| c.net = vec![NetConfig::parse("fabric").unwrap()]),
            refused(|c| c.net = vec![NetConfig::parse("tap=t0,mtu=100").unwrap()]),
            refused(|c| c.rdma = Some(RdmaConfig::parse("fabric=tcp").unwrap())),
            refused_rdma("fabric=tcp,lanes=9"),
            refused_rdma("fabric=tcp,poll=1000001"),
            refused_rdma("fabric=tcp,send_buffer=4095"),
            refused_rdma("fabric=tcp,send_buffer=2G"),
            refused(|c| c.exec = Some(" ".into())),
            refused(|c| c.timeout = Some(0)),
        ];
        for e in cases {
            let text = e.to_string();
            assert!(text.starts_with("--"), "{text}");
            assert!(text.contains("; allowed: "), "{text}");
            assert_eq!(text.lines().count(), 1);
        }
    }

    #[test]
    fn option_values_and_json_say_the_same() {
        let mut given = VmConfig::new("vmlinuz");
        given.memory = MemoryConfig::parse("4G,hugepages=on").unwrap();
        given.disks = vec![DiskConfig::parse("root.img,ro").unwrap()];
        given.net = vec![NetConfig::parse("fabric,mac=02:00:00:00:00:01,mtu=1500").unwrap()];
        given.rdma = Some(
            RdmaConfig::parse(
                "fabric=tcp,listen=127.0.0.1:7000,peer=[::1]:7001,lanes=3,poll=20,send_buffer=4M,qps=8,mr_size=1G",
            )
            .unwrap(),
        );
        given.serial = Some(SerialConfig::parse("file=log").unwrap());
        given.vsock = Some(VsockConfig::parse("auto").unwrap());
        let read: VmConfig = serde_json::from_str(
            r#"{"kernel": "vmlinuz", "memory": {"size": 4294967296, "hugepages": true},
                "disks": [{"path": "root.img", "readonly": true}],
                "net": [{"backend": "fabric", "mac": "02:00:00:00:00:01", "mtu": 1500}],
                "rdma": {"fabric": "tcp", "listen": "127.0.0.1:7000", "peers": ["[::1]:7001"],
                         "lanes": 3, "poll": 20, "send_buffer": "4M", "limits": {"qps": 8, "mr_size": "1G"}},
                "serial": {"file": "log"}, "vsock": "auto"}"#,
        )
        .unwrap();
        assert_eq!(given, read);
        given.validate().unwrap();
        let text = serde_json::to_string(&given).unwrap();
        assert_eq!(serde_json::from_str::<VmConfig>(&text).unwrap(), given);
    }

    #[test]
    fn the_example_in_the_documentation_is_a_valid_machine() {
        let text = include_str!("../../docs/running.md");
        let json = text.split("```json").nth(1).unwrap();
        let json = json.split("```").next().unwrap();
        let config: VmConfig = serde_json::from_str(json).unwrap();
        config.validate().unwrap();
        assert_eq!((config.net.len(), config.cpus), (2, 2));
    }

    #[test]
    fn unknown_fields_are_refused_at_every_level() {
        for text in [
            r#"{"kernel": "k", "cpu": 1}"#,
            r#"{"kernel": "k", "memory": {"size": "1G", "huge": true}}"#,
            r#"{"kernel": "k", "disks": [{"path": "a", "ro": true}]}"#,
            r#"{"kernel": "k", "rdma": {"fabric": "tcp", "limits": {"max_qp": 1}}}"#,
            r#"{"kernel": "k", "rdma": {"fabric": "shm"}}"#,
        ] {
            assert!(serde_json::from_str::<VmConfig>(text).is_err(), "{text}");
        }
    }

    #[test]
    fn malformed_option_values_are_refused_in_one_line() {
        let cases = [
            MemoryConfig::parse("").unwrap_err(),
            MemoryConfig::parse("4X").unwrap_err(),
            MemoryConfig::parse("4G,huge=on").unwrap_err(),
            MemoryConfig::parse("4G,hugepages=yes").unwrap_err(),
            DiskConfig::parse("").unwrap_err(),
            DiskConfig::parse("a,readonly").unwrap_err(),
            NetConfig::parse("").unwrap_err(),
            NetConfig::parse("tap").unwrap_err(),
            NetConfig::parse("tap=a,fabric").unwrap_err(),
            NetConfig::parse("fabric,mac=zz").unwrap_err(),
            NetConfig::parse("fabric,mtu=99999").unwrap_err(),
            RdmaConfig::parse("listen=127.0.0.1:1").unwrap_err(),
            RdmaConfig::parse("fabric=ib").unwrap_err(),
            RdmaConfig::parse("fabric=tcp,peer=host").unwrap_err(),
            RdmaConfig::parse("fabric=tcp,poll=-1").unwrap_err(),
            RdmaConfig::parse("fabric=tcp,send_buffer=lots").unwrap_err(),
            RdmaConfig::parse("fabric=tcp,rd_atomic=256").unwrap_err(),
            RdmaConfig::parse("fabric=tcp,inline=1K").unwrap_err(),
            SerialConfig::parse("tty").unwrap_err(),
            VsockConfig::parse("").unwrap_err(),
        ];
        for e in cases {
            let text = e.to_string();
            assert!(text.starts_with("--"), "{text}");
            assert_eq!(text.lines().count(), 1, "{text}");
        }
    }

    #[test]
    fn a_command_turns_the_console_off_and_brings_vsock() {
        let mut config = VmConfig::new("k");
        assert_eq!(config.serial(), SerialConfig::Stdio);
        assert_eq!(config.vsock(), None);
        config.exec = Some("true".into());
        assert_eq!(config.serial(), SerialConfig::Off);
        assert_eq!(config.vsock(), Some(VsockConfig::Auto));
    }
}
