//! Somebody who connects to a monitor's port and sends any bytes: no HELLO, a bad one, frames that no monitor would send, and
//! frames that name the queues and keys of others.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Instant;

use devices::rdma::fabric::frame::{FrameHeader, kind};

use super::victim::{Victim, canaries};
use crate::host::BOUND;
use crate::random::Source;
use crate::world::{Kind, Options, World, node, tcp_fabric};

/// Two monitors with a link between them, and a port to attack.
pub struct Port {
    /// The two.
    pub world: World,
    /// Their traffic.
    pub victim: Victim,
    address: SocketAddr,
    stream: Option<TcpStream>,
    /// Bytes that the monitor read, and connections that it closed.
    pub sent: u64,
    /// See `sent`.
    pub closed: u64,
}

fn hello(source: &mut impl Source) -> Vec<u8> {
    let mut payload = b"LARM".to_vec();
    payload.extend_from_slice(&1u16.to_le_bytes());
    payload.extend_from_slice(&1u16.to_le_bytes());
    let mut instance = [0; 16];
    source.fill(&mut instance);
    payload.extend_from_slice(&instance);
    payload.extend_from_slice(&(1u32 << 20).to_le_bytes());
    payload.extend_from_slice(&[0; 4]);
    let header = FrameHeader {
        kind: kind::HELLO,
        length: payload.len() as u32,
        ..Default::default()
    };
    let mut bytes = header.encode().to_vec();
    bytes.extend_from_slice(&payload);
    bytes
}

impl Port {
    /// Two monitors and their traffic.
    pub fn new() -> Port {
        let (left, left_stats, address) = tcp_fabric(&[]);
        let (right, right_stats, _) = tcp_fabric(&[address]);
        let options = Options {
            pages: 2048,
            ..Default::default()
        };
        let nodes = vec![
            node(0, left, left_stats, &options),
            node(1, right, right_stats, &options),
        ];
        let world = World::of(nodes, Kind::Tcp);
        world.plant_canaries();
        let mut victim = Victim::new(&world);
        victim.works(&world);
        Port {
            world,
            victim,
            address,
            stream: None,
            sent: 0,
            closed: 0,
        }
    }

    fn put(&mut self, bytes: &[u8]) {
        let started = Instant::now();
        let mut at = 0;
        while at < bytes.len() {
            let Some(stream) = &mut self.stream else {
                return;
            };
            match stream.write(&bytes[at..]) {
                Ok(n) => {
                    at += n;
                    self.sent += n as u64;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.world.step();
                    assert!(
                        started.elapsed() < BOUND,
                        "the monitor does not read and does not close"
                    );
                }
                Err(_) => {
                    self.closed += 1;
                    self.stream = None;
                }
            }
        }
    }

    fn drain(&mut self) {
        let mut sink = [0; 4096];
        let Some(stream) = &mut self.stream else {
            return;
        };
        loop {
            match stream.read(&mut sink) {
                Ok(0) => break,
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(_) => break,
            }
        }
        self.closed += 1;
        self.stream = None;
    }

    fn frame(&self, source: &mut impl Source) -> Vec<u8> {
        let secrets = self.victim.secrets();
        let kinds = [
            kind::HELLO,
            kind::PING,
            kind::PONG,
            kind::GID_ADD,
            kind::GID_DEL,
            kind::ETHERNET,
            kind::SEND,
            kind::WRITE,
            kind::READ,
            kind::READ_DATA,
            kind::ATOMIC,
            kind::ATOMIC_DATA,
            kind::ACK,
            kind::NAK,
        ];
        let kind = if source.one_in(40) {
            source.word() as u8
        } else {
            source.pick(&kinds[1..])
        };
        let mut length = match kind {
            kind::PING | kind::PONG | kind::READ | kind::ACK | kind::NAK => 0,
            kind::GID_ADD | kind::GID_DEL => 16 * source.below(5),
            kind::ATOMIC => 16,
            kind::ATOMIC_DATA => 8,
            kind::ETHERNET => 14 + source.below(2000),
            _ => source.below(10_000),
        };
        if source.one_in(40) {
            length = source.below(100_000);
        }
        let header = FrameHeader {
            kind,
            flags: source.below(16) as u8,
            length: if source.one_in(60) {
                source.edge() as u32
            } else {
                length as u32
            },
            dst_qpn: source.pick(&secrets.handles),
            src_qpn: source.pick(&secrets.handles),
            seq: source.edge() as u32,
            rkey: source.pick(&secrets.keys),
            addr: source.pick(&secrets.iovas).wrapping_add(source.below(64)),
            imm: [1, 2, 3, 4],
            msg_len: length as u32,
            offset: 0,
            aux: source.below(3) as u32,
            lane: 0,
        };
        let mut bytes = header.encode().to_vec();
        if source.one_in(60) {
            let at = source.below(48) as usize;
            bytes[at] ^= source.word() as u8;
        }
        let start = bytes.len();
        bytes.resize(start + length as usize, 0xa5);
        if kind == kind::GID_ADD {
            // GIDs of its own: whoever announces those of others takes their routes, by section 4.
            for gid in bytes[start..].chunks_mut(16) {
                source.fill(gid);
            }
        }
        bytes
    }

    /// One thing that somebody at a port may do.
    pub fn act(&mut self, source: &mut impl Source) {
        if self.stream.is_none() {
            let stream = TcpStream::connect(self.address).expect("the monitor listens");
            stream.set_nonblocking(true).expect("a socket");
            self.stream = Some(stream);
            let mut bytes = hello(source);
            match source.below(8) {
                0 => bytes.clear(),
                1 => {
                    let at = source.below(bytes.len() as u64) as usize;
                    bytes[at] ^= source.word() as u8;
                }
                2 => {
                    let len = source.below(bytes.len() as u64) as usize;
                    bytes.truncate(len);
                }
                _ => {}
            }
            self.put(&bytes);
            return;
        }
        match source.below(16) {
            0 => self.stream = None,
            1 => {
                let mut bytes = vec![0; source.below(200) as usize];
                source.fill(&mut bytes);
                self.put(&bytes);
            }
            2..=10 => {
                let bytes = self.frame(source);
                let split = source.below(bytes.len() as u64 + 1) as usize;
                self.put(&bytes[..split]);
                if source.one_in(4) {
                    self.world.step();
                }
                self.put(&bytes[split..]);
            }
            _ => {
                self.world.step();
                self.drain();
            }
        }
    }

    /// Sends until the source is exhausted or `enough` says so.
    pub fn attack(&mut self, source: &mut impl Source, mut enough: impl FnMut(u64) -> bool) {
        let mut round = 0;
        while !source.exhausted() && !enough(round) {
            self.act(source);
            round += 1;
            if round % 512 == 0 {
                self.victim.works(&self.world);
                canaries(&self.world);
            }
        }
        self.victim.works(&self.world);
        canaries(&self.world);
    }
}

impl Default for Port {
    fn default() -> Self {
        Port::new()
    }
}
