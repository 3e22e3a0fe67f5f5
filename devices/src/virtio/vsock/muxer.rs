//! The device's thread: packets between the virtqueues and the connections.

use std::collections::{HashMap, VecDeque};
use std::io::{self, Read};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use vmm_sys_util::epoll::EventSet;

use super::connection::{Connection, Ended, Key};
use super::packet::{HEADER, HOST_CID, Header, TYPE_STREAM, op};
use crate::virtio::queue::{Chain, DeviceQueue, QueueError};
use crate::virtio::worker::Poller;

/// Connections, and callers that have not said their port yet.
const MAX_CONNECTIONS: usize = 1024;
const MAX_CALLERS: usize = 128;
/// Resets that wait for room in the receive queue; a guest that provokes more does not hear of them.
const MAX_RESETS: usize = 256;
/// Most data in a packet, either way.
const MAX_DATA: usize = 64 << 10;
/// The longest line that a caller may send: `CONNECT 4294967295\n`.
const MAX_LINE: usize = 19;
/// Packets taken from the guest before its own are served.
const BATCH: usize = 32;
/// Host ports of connections that the host asked for start here, out of the way of well-known ports.
const FIRST_HOST_PORT: u32 = 1 << 30;

const TOKEN_RX: u64 = 0;
const TOKEN_TX: u64 = 1;
const TOKEN_EVENT: u64 = 2;
const TOKEN_LISTENER: u64 = 3;
const FIRST_TOKEN: u64 = 16;

/// Somebody who connected to the host's socket and has not sent the whole `CONNECT` line.
struct Caller {
    stream: UnixStream,
    line: Vec<u8>,
}

/// What stands behind an event token.
struct Watched {
    connection: Connection,
    /// The states that the stream is watched for, `None` when it is not.
    events: Option<EventSet>,
    /// Is in `ready`.
    queued: bool,
}

pub(super) struct Muxer {
    guest_cid: u64,
    /// Where the host listens; the guest's port P leads to this path with `_P` behind it.
    path: PathBuf,
    listener: Arc<UnixListener>,
    poller: Poller,
    rx: DeviceQueue,
    tx: DeviceQueue,
    event: DeviceQueue,
    callers: HashMap<u64, Caller>,
    connections: HashMap<u64, Watched>,
    tokens: HashMap<Key, u64>,
    next_token: u64,
    next_host_port: u32,
    /// Connections that may have a packet for the guest, in turn.
    ready: VecDeque<u64>,
    resets: VecDeque<Header>,
    chain: Chain,
    data: Vec<u8>,
}

impl Muxer {
    pub(super) fn new(
        guest_cid: u64,
        path: &Path,
        listener: Arc<UnixListener>,
        poller: Poller,
        [rx, tx, event]: [DeviceQueue; 3],
    ) -> Self {
        Self {
            guest_cid,
            path: path.into(),
            listener,
            poller,
            rx,
            tx,
            event,
            callers: HashMap::new(),
            connections: HashMap::new(),
            tokens: HashMap::new(),
            next_token: FIRST_TOKEN,
            next_host_port: FIRST_HOST_PORT,
            ready: VecDeque::new(),
            resets: VecDeque::new(),
            chain: Chain::default(),
            data: vec![0; MAX_DATA],
        }
    }

    /// Runs until the device is reset, or its queues are broken.
    pub(super) fn run(mut self) {
        let watch = [
            (self.rx.kick_fd(), TOKEN_RX),
            (self.tx.kick_fd(), TOKEN_TX),
            (self.event.kick_fd(), TOKEN_EVENT),
            (self.listener.as_raw_fd(), TOKEN_LISTENER),
        ];
        for (fd, token) in watch {
            if let Err(e) = self.poller.add(fd, token, EventSet::IN) {
                return log::error!("vsock: {e}");
            }
        }
        let mut events = Vec::new();
        loop {
            let more = match self.exchange() {
                Ok(more) => more,
                Err(e) => return self.tx.fail(&e),
            };
            if !self.poller.wait(if more { 0 } else { -1 }, &mut events) {
                return;
            }
            for &(token, states) in &events {
                match token {
                    TOKEN_RX => self.rx.clear_kick(),
                    TOKEN_TX => self.tx.clear_kick(),
                    TOKEN_EVENT => self.event.clear_kick(),
                    TOKEN_LISTENER => self.accept(),
                    token if self.callers.contains_key(&token) => self.hear(token),
                    token => {
                        let result = self
                            .connections
                            .get_mut(&token)
                            .map(|w| w.connection.stream_event(states));
                        self.settle(token, result.unwrap_or(Ok(())));
                    }
                }
            }
        }
    }

    /// Moves packets both ways. Returns true when there may be more from the guest.
    fn exchange(&mut self) -> Result<bool, QueueError> {
        let more = self.take_packets()?;
        self.give_packets()?;
        Ok(more)
    }

    fn take_packets(&mut self) -> Result<bool, QueueError> {
        let mut chain = std::mem::take(&mut self.chain);
        let mut taken = 0;
        while taken < BATCH && self.tx.pop(&mut chain)? {
            taken += 1;
            if let Err(e) = self.take_packet(&chain) {
                log::debug!("vsock: packet dropped: {e}");
            }
            self.tx.push(&chain, 0)?;
        }
        self.chain = chain;
        if taken > 0 {
            self.tx.signal()?;
        }
        if taken == BATCH {
            Ok(true)
        } else {
            self.tx.enable_notification()
        }
    }

    fn take_packet(&mut self, chain: &Chain) -> Result<(), QueueError> {
        let mut raw = [0; HEADER];
        let memory = self.tx.memory().clone();
        chain.readable.read(&memory, 0, &mut raw)?;
        let header = Header::decode(&raw);
        if header.dst_cid != HOST_CID || header.src_cid != self.guest_cid {
            log::debug!(
                "vsock: packet from {} to {} dropped",
                header.src_cid,
                header.dst_cid
            );
            return Ok(());
        }
        let len = if header.op == op::RW {
            header.len as usize
        } else {
            0
        };
        if header.kind != TYPE_STREAM || len > MAX_DATA {
            self.refuse(&header);
            return Ok(());
        }
        let mut data = std::mem::take(&mut self.data);
        let read = chain.readable.read(&memory, HEADER, &mut data[..len]);
        if read.is_ok() {
            self.deliver(&header, &data[..len]);
        }
        self.data = data;
        read
    }

    fn deliver(&mut self, header: &Header, data: &[u8]) {
        let key = Key {
            host_port: header.dst_port,
            guest_port: header.src_port,
        };
        match self.tokens.get(&key) {
            Some(&token) => {
                let result = self
                    .connections
                    .get_mut(&token)
                    .map(|w| w.connection.packet(header, data));
                self.settle(token, result.unwrap_or(Ok(())));
            }
            None if header.op == op::REQUEST => self.connect(key, header),
            None => self.refuse(header),
        }
    }

    /// Answers a packet that belongs nowhere with a reset, unless it is one.
    fn refuse(&mut self, header: &Header) {
        if header.op != op::RST && self.resets.len() < MAX_RESETS {
            self.resets.push_back(header.reset());
        }
    }

    /// The guest asks for a connection: to the socket of whoever listens for that port.
    fn connect(&mut self, key: Key, request: &Header) {
        let mut path = self.path.clone().into_os_string();
        path.push(format!("_{}", key.host_port));
        if self.connections.len() >= MAX_CONNECTIONS {
            return self.refuse(request);
        }
        match connect_now(Path::new(&path)) {
            Ok(stream) => self.add(Connection::from_guest(key, stream, request)),
            Err(e) => {
                log::debug!("vsock: no connection to {}: {e}", path.display());
                self.refuse(request);
            }
        }
    }

    fn add(&mut self, connection: Connection) {
        let token = self.new_token();
        self.tokens.insert(connection.key(), token);
        self.connections.insert(
            token,
            Watched {
                connection,
                events: None,
                queued: false,
            },
        );
        self.settle(token, Ok(()));
    }

    fn new_token(&mut self) -> u64 {
        self.next_token += 1;
        self.next_token
    }

    /// After anything happened to a connection: removes it, or queues and watches it as it now needs.
    fn settle(&mut self, token: u64, result: Result<(), Ended>) {
        let Some(watched) = self.connections.get_mut(&token) else {
            return;
        };
        if let Err(ended) = result {
            return self.remove(token, &ended);
        }
        if watched.connection.has_packet() && !watched.queued {
            watched.queued = true;
            self.ready.push_back(token);
        }
        let wanted = watched.connection.interest();
        let fd = watched.connection.fd();
        let changed = match (watched.events, wanted) {
            (None, Some(events)) => self.poller.add(fd, token, events),
            (Some(_), None) => self.poller.remove(fd),
            (Some(old), Some(new)) if old != new => self.poller.modify(fd, token, new),
            _ => Ok(()),
        };
        watched.events = wanted;
        if let Err(e) = changed {
            log::warn!("vsock: a connection cannot be watched: {e}");
            self.remove(token, &Ended { tell_guest: true });
        }
    }

    fn remove(&mut self, token: u64, ended: &Ended) {
        // Closing the stream also ends the watch on it. What is left in `ready` is skipped.
        if let Some(mut watched) = self.connections.remove(&token) {
            self.tokens.remove(&watched.connection.key());
            if ended.tell_guest && self.resets.len() < MAX_RESETS {
                self.resets
                    .push_back(watched.connection.reset(self.guest_cid));
            }
        }
    }

    /// Fills the guest's receive buffers with what there is for it.
    fn give_packets(&mut self) -> Result<(), QueueError> {
        let mut chain = std::mem::take(&mut self.chain);
        let mut given = 0;
        while !self.resets.is_empty() || !self.ready.is_empty() {
            if !self.rx.pop(&mut chain)? {
                if self.rx.enable_notification()? {
                    continue;
                }
                break;
            }
            match self.next_packet(chain.writable.len()) {
                Some(header) => {
                    let written = self.put_packet(&chain, &header);
                    self.rx.push(&chain, written)?;
                    given += 1;
                }
                None => self.rx.unpop(),
            }
        }
        self.chain = chain;
        if given > 0 {
            self.rx.signal()?;
        }
        Ok(())
    }

    /// The next packet for a buffer of `room` bytes; its data is in `self.data`.
    fn next_packet(&mut self, room: usize) -> Option<Header> {
        if let Some(header) = self.resets.pop_front() {
            return Some(header);
        }
        while let Some(token) = self.ready.pop_front() {
            let Some(watched) = self.connections.get_mut(&token) else {
                continue;
            };
            watched.queued = false;
            let room = room.saturating_sub(HEADER).min(MAX_DATA);
            let packet = watched
                .connection
                .next_packet(self.guest_cid, &mut self.data[..room]);
            let header = packet.as_ref().ok().copied().flatten();
            self.settle(token, packet.map(|_| ()));
            if header.is_some() {
                return header;
            }
            if room == 0 {
                // Nothing will ever fit into such a buffer: give it back empty.
                return self.resets.pop_front();
            }
        }
        self.resets.pop_front()
    }

    fn put_packet(&self, chain: &Chain, header: &Header) -> usize {
        let memory = self.rx.memory();
        let data = &self.data[..header.len as usize];
        let written = chain
            .writable
            .write(memory, 0, &header.encode())
            .and_then(|()| chain.writable.write(memory, HEADER, data));
        match written {
            Ok(()) => HEADER + data.len(),
            Err(e) => {
                log::debug!("vsock: packet lost: {e}");
                0
            }
        }
    }

    /// Somebody on the host wants to talk to the guest.
    fn accept(&mut self) {
        loop {
            let stream = match self.listener.accept() {
                Ok((stream, _)) => stream,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) => {
                    if e.kind() != io::ErrorKind::WouldBlock {
                        log::warn!("vsock: accepting a connection: {e}");
                    }
                    return;
                }
            };
            let token = self.new_token();
            let watched = stream
                .set_nonblocking(true)
                .and_then(|()| self.poller.add(stream.as_raw_fd(), token, EventSet::IN));
            // A caller that cannot be served sees its connection closed.
            if watched.is_ok() && self.callers.len() < MAX_CALLERS {
                self.callers.insert(
                    token,
                    Caller {
                        stream,
                        line: Vec::with_capacity(MAX_LINE),
                    },
                );
            }
        }
    }

    /// A caller sent something: a part of `CONNECT <port>\n`. Not a byte more is read, the rest is for the guest.
    fn hear(&mut self, token: u64) {
        let Some(caller) = self.callers.get_mut(&token) else {
            return;
        };
        loop {
            let mut byte = [0];
            match caller.stream.read(&mut byte) {
                Ok(1) if byte[0] == b'\n' => break,
                Ok(1) if caller.line.len() < MAX_LINE => caller.line.push(byte[0]),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return,
                _ => {
                    self.callers.remove(&token);
                    return;
                }
            }
        }
        let Some(caller) = self.callers.remove(&token) else {
            return;
        };
        let port = std::str::from_utf8(&caller.line)
            .ok()
            .and_then(|line| line.strip_prefix("CONNECT "))
            .and_then(|port| port.trim_end().parse().ok());
        let Some(guest_port) = port else { return };
        if self.connections.len() >= MAX_CONNECTIONS
            || self.poller.remove(caller.stream.as_raw_fd()).is_err()
        {
            return;
        }
        let key = self.free_key(guest_port);
        self.add(Connection::from_host(key, caller.stream));
    }

    fn free_key(&mut self, guest_port: u32) -> Key {
        // Ends: there are far more ports than connections.
        loop {
            let host_port = self.next_host_port;
            self.next_host_port = self
                .next_host_port
                .checked_add(1)
                .unwrap_or(FIRST_HOST_PORT);
            let key = Key {
                host_port,
                guest_port,
            };
            if !self.tokens.contains_key(&key) {
                return key;
            }
        }
    }
}

/// Connects to a Unix socket without waiting for whoever listens there.
fn connect_now(path: &Path) -> io::Result<UnixStream> {
    use std::os::unix::ffi::OsStrExt;
    let bytes = path.as_os_str().as_bytes();
    // SAFETY: an address of all zeroes is a valid value.
    let mut addr: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    if bytes.len() >= addr.sun_path.len() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    addr.sun_family = libc::AF_UNIX as libc::sa_family_t;
    for (to, from) in addr.sun_path.iter_mut().zip(bytes) {
        *to = *from as libc::c_char;
    }
    // SAFETY: a system call without pointers.
    let fd = unsafe {
        libc::socket(
            libc::AF_UNIX,
            libc::SOCK_STREAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC,
            0,
        )
    };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: `fd` was just made and belongs to nobody else.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    let len = size_of::<libc::sockaddr_un>() as libc::socklen_t;
    // SAFETY: `addr` is a valid address of the length given, its path ended by a zero.
    if unsafe { libc::connect(fd.as_raw_fd(), (&raw const addr).cast(), len) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(fd.into())
}
