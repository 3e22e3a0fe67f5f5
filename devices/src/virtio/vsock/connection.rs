//! One connection between a guest's socket and a Unix stream socket of the host, with its flow control (virtio 1.2, 5.10.6.3).

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::num::Wrapping;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;

use vmm_sys_util::epoll::EventSet;

use super::packet::{HOST_CID, Header, SHUTDOWN_RECEIVE, SHUTDOWN_SEND, TYPE_STREAM, op};

/// Bytes that the guest may send ahead of what the host's process has read.
pub(super) const BUFFER: u32 = 256 << 10;
const BOTH: u32 = SHUTDOWN_RECEIVE | SHUTDOWN_SEND;

/// The ports of a connection, which name it: the CIDs are always the host's and the guest's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Key {
    pub(super) host_port: u32,
    pub(super) guest_port: u32,
}

/// The connection must go: with a packet to tell the guest, unless the guest asked for it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Ended {
    pub(super) tell_guest: bool,
}

const QUIETLY: Ended = Ended { tell_guest: false };
const LOUDLY: Ended = Ended { tell_guest: true };

#[derive(Debug, PartialEq, Eq)]
enum State {
    /// The host asked; REQUEST is to be sent.
    Asking,
    /// REQUEST is sent; the guest has not answered.
    Asked,
    /// The guest asked; RESPONSE is to be sent.
    Answering,
    Open,
}

/// A connection. It owns its stream, which does not block.
pub(super) struct Connection {
    key: Key,
    stream: UnixStream,
    state: State,
    /// What the guest sent and the stream has not taken.
    to_host: VecDeque<u8>,
    /// Bytes passed on to the host, ever.
    forwarded: Wrapping<u32>,
    /// `forwarded` as last told to the guest.
    told_forwarded: Wrapping<u32>,
    credit_update_due: bool,
    /// Bytes sent to the guest, ever; the guest's buffer; and how much of them it has consumed.
    sent: Wrapping<u32>,
    guest_buffer: u32,
    guest_consumed: Wrapping<u32>,
    credit_asked: bool,
    /// What the guest said it will not do any more.
    guest_shutdown: u32,
    host_write_closed: bool,
    /// What the host will not do any more, and what of it the guest was told.
    host_shutdown: u32,
    told_shutdown: u32,
    /// The stream may have something to read.
    readable: bool,
    /// The stream's other end is gone, or the stream is of no more use.
    hung_up: bool,
}

impl Connection {
    fn new(key: Key, stream: UnixStream, state: State) -> Self {
        Self {
            key,
            stream,
            state,
            to_host: VecDeque::new(),
            forwarded: Wrapping(0),
            told_forwarded: Wrapping(0),
            credit_update_due: false,
            sent: Wrapping(0),
            guest_buffer: 0,
            guest_consumed: Wrapping(0),
            credit_asked: false,
            guest_shutdown: 0,
            host_write_closed: false,
            host_shutdown: 0,
            told_shutdown: 0,
            readable: false,
            hung_up: false,
        }
    }

    /// A connection that the host asks for.
    pub(super) fn from_host(key: Key, stream: UnixStream) -> Self {
        Self::new(key, stream, State::Asking)
    }

    /// A connection that the guest asked for by `request`, to `stream`.
    pub(super) fn from_guest(key: Key, stream: UnixStream, request: &Header) -> Self {
        let mut connection = Self::new(key, stream, State::Answering);
        connection.take_credit(request);
        connection
    }

    pub(super) fn key(&self) -> Key {
        self.key
    }

    pub(super) fn fd(&self) -> RawFd {
        self.stream.as_raw_fd()
    }

    /// What to wait for on the stream; `None` when nothing, not even its end, is of interest any more.
    pub(super) fn interest(&self) -> Option<EventSet> {
        if self.hung_up {
            return None;
        }
        let mut events = EventSet::empty();
        let wants_data =
            self.host_shutdown & SHUTDOWN_SEND == 0 && self.guest_shutdown & SHUTDOWN_RECEIVE == 0;
        if self.state == State::Open && wants_data && !self.readable {
            events |= EventSet::IN;
        }
        if !self.to_host.is_empty() {
            events |= EventSet::OUT;
        }
        Some(events)
    }

    /// The stream is in one of the states `events`.
    pub(super) fn stream_event(&mut self, events: EventSet) -> Result<(), Ended> {
        if events.intersects(EventSet::HANG_UP | EventSet::ERROR) {
            self.hung_up = true;
            if self.state != State::Open {
                // Nobody waits for the answer. The guest does not know the connection before REQUEST.
                return Err(if self.state == State::Asking {
                    QUIETLY
                } else {
                    LOUDLY
                });
            }
        }
        if events.intersects(EventSet::IN | EventSet::HANG_UP | EventSet::ERROR) {
            self.readable = true;
        }
        self.flush()
    }

    /// A packet of this connection came from the guest.
    pub(super) fn packet(&mut self, header: &Header, data: &[u8]) -> Result<(), Ended> {
        self.take_credit(header);
        match (header.op, &self.state) {
            (op::RST, _) => Err(QUIETLY),
            (op::RESPONSE, State::Asked) => {
                self.state = State::Open;
                self.to_host
                    .extend(format!("OK {}\n", self.key.host_port).bytes());
                // The line is not the guest's, so it does not count as forwarded.
                self.forwarded -= Wrapping(self.to_host.len() as u32);
                self.flush()
            }
            (op::RW, State::Open | State::Answering) => self.data(data),
            (op::SHUTDOWN, State::Open | State::Answering) => {
                self.guest_shutdown |= header.flags & BOTH;
                self.flush()
            }
            (op::CREDIT_UPDATE, _) => Ok(()),
            (op::CREDIT_REQUEST, _) => {
                self.credit_update_due = true;
                Ok(())
            }
            _ => Err(LOUDLY),
        }
    }

    fn data(&mut self, data: &[u8]) -> Result<(), Ended> {
        let room = (BUFFER as usize).saturating_sub(self.to_host.len());
        if data.len() > room || self.guest_shutdown & SHUTDOWN_SEND != 0 {
            return Err(LOUDLY);
        }
        self.to_host.extend(data);
        self.flush()
    }

    fn take_credit(&mut self, header: &Header) {
        self.guest_buffer = header.buf_alloc;
        self.guest_consumed = Wrapping(header.fwd_cnt);
        self.credit_asked = false;
    }

    /// Bytes that the guest has room for. A guest that counts wrongly has none.
    fn credit(&self) -> usize {
        let in_flight = (self.sent - self.guest_consumed).0;
        self.guest_buffer.saturating_sub(in_flight) as usize
    }

    /// Passes on to the stream what it takes, and closes what the guest closed once everything is passed on.
    fn flush(&mut self) -> Result<(), Ended> {
        while !self.to_host.is_empty() {
            let (front, _) = self.to_host.as_slices();
            match self.stream.write(front) {
                Ok(n) => {
                    self.to_host.drain(..n);
                    self.forwarded += Wrapping(n as u32);
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                Err(_) => return Err(LOUDLY),
            }
        }
        if (self.forwarded - self.told_forwarded).0 >= BUFFER / 4 {
            self.credit_update_due = true;
        }
        if self.to_host.is_empty() {
            if self.guest_shutdown == BOTH {
                return Err(LOUDLY);
            }
            if self.guest_shutdown & SHUTDOWN_SEND != 0 && !self.host_write_closed {
                self.host_write_closed = true;
                // Fails only when the other end is gone, which is noticed elsewhere.
                let _ = self.stream.shutdown(std::net::Shutdown::Write);
            }
        }
        Ok(())
    }

    /// Whether [`next_packet`](Self::next_packet) may have a packet for the guest.
    pub(super) fn has_packet(&self) -> bool {
        matches!(self.state, State::Asking | State::Answering)
            || self.credit_update_due
            || self.host_shutdown != self.told_shutdown
            || self.can_read() && (self.credit() > 0 || !self.credit_asked)
    }

    fn can_read(&self) -> bool {
        self.state == State::Open
            && self.readable
            && self.host_shutdown & SHUTDOWN_SEND == 0
            && self.guest_shutdown & SHUTDOWN_RECEIVE == 0
    }

    /// The next packet for the guest `guest_cid`; its data is put into `data`, whose length is the room that the guest's buffer has.
    pub(super) fn next_packet(
        &mut self,
        guest_cid: u64,
        data: &mut [u8],
    ) -> Result<Option<Header>, Ended> {
        match self.state {
            State::Asking => {
                self.state = State::Asked;
                return Ok(Some(self.header(guest_cid, op::REQUEST, 0)));
            }
            State::Answering => {
                self.state = State::Open;
                return Ok(Some(self.header(guest_cid, op::RESPONSE, 0)));
            }
            State::Asked | State::Open => {}
        }
        if self.can_read() {
            let room = data.len().min(self.credit());
            if room > 0 {
                if let Some(n) = self.read(&mut data[..room])? {
                    self.sent += Wrapping(n as u32);
                    return Ok(Some(self.header(guest_cid, op::RW, n as u32)));
                }
            } else if self.credit() == 0 && !self.credit_asked {
                self.credit_asked = true;
                return Ok(Some(self.header(guest_cid, op::CREDIT_REQUEST, 0)));
            }
        }
        if self.host_shutdown != self.told_shutdown {
            self.told_shutdown = self.host_shutdown;
            let mut header = self.header(guest_cid, op::SHUTDOWN, 0);
            header.flags = self.host_shutdown;
            return Ok(Some(header));
        }
        if self.credit_update_due {
            return Ok(Some(self.header(guest_cid, op::CREDIT_UPDATE, 0)));
        }
        Ok(None)
    }

    /// Reads from the stream; `None` when there is nothing now, or never again.
    fn read(&mut self, data: &mut [u8]) -> Result<Option<usize>, Ended> {
        loop {
            match self.stream.read(data) {
                Ok(0) => {
                    self.readable = false;
                    self.host_shutdown = if self.hung_up { BOTH } else { SHUTDOWN_SEND };
                    return Ok(None);
                }
                Ok(n) => return Ok(Some(n)),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    self.readable = false;
                    return Ok(None);
                }
                Err(_) => return Err(LOUDLY),
            }
        }
    }

    /// A header of this connection; it tells the guest of the credit it has.
    fn header(&mut self, guest_cid: u64, op: u16, len: u32) -> Header {
        self.told_forwarded = self.forwarded;
        self.credit_update_due = false;
        Header {
            src_cid: HOST_CID,
            dst_cid: guest_cid,
            src_port: self.key.host_port,
            dst_port: self.key.guest_port,
            len,
            kind: TYPE_STREAM,
            op,
            flags: 0,
            buf_alloc: BUFFER,
            fwd_cnt: self.forwarded.0,
        }
    }

    /// The packet that tells the guest that the connection is gone.
    pub(super) fn reset(&mut self, guest_cid: u64) -> Header {
        let mut header = self.header(guest_cid, op::RST, 0);
        header.flags = 0;
        header
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GUEST: u64 = 3;
    const KEY: Key = Key {
        host_port: 77,
        guest_port: 1024,
    };

    fn pair() -> (UnixStream, UnixStream) {
        let (a, b) = UnixStream::pair().unwrap();
        a.set_nonblocking(true).unwrap();
        b.set_nonblocking(true).unwrap();
        (a, b)
    }

    fn from_guest(op: u16, buf_alloc: u32, fwd_cnt: u32) -> Header {
        Header {
            op,
            buf_alloc,
            fwd_cnt,
            ..Header::default()
        }
    }

    fn open() -> (Connection, UnixStream) {
        let (ours, theirs) = pair();
        let mut c = Connection::from_guest(KEY, ours, &from_guest(op::REQUEST, 10, 0));
        assert_eq!(
            c.next_packet(GUEST, &mut []).unwrap().unwrap().op,
            op::RESPONSE
        );
        (c, theirs)
    }

    fn read_all(s: &mut UnixStream) -> Vec<u8> {
        let mut out = vec![0; 1 << 20];
        let n = s.read(&mut out).unwrap_or(0);
        out.truncate(n);
        out
    }

    #[test]
    fn the_host_is_told_when_the_guest_accepts() {
        let (ours, mut theirs) = pair();
        let mut c = Connection::from_host(KEY, ours);
        assert_eq!(c.interest(), Some(EventSet::empty()));
        let request = c.next_packet(GUEST, &mut [0; 64]).unwrap().unwrap();
        assert_eq!(
            (
                request.op,
                request.src_port,
                request.dst_port,
                request.buf_alloc
            ),
            (op::REQUEST, 77, 1024, BUFFER)
        );
        assert!(!c.has_packet());
        c.packet(&from_guest(op::RESPONSE, 100, 0), &[]).unwrap();
        assert_eq!(read_all(&mut theirs), b"OK 77\n");
        c.packet(&from_guest(op::RW, 100, 0), b"hello").unwrap();
        c.packet(&from_guest(op::CREDIT_REQUEST, 100, 0), &[])
            .unwrap();
        let update = c.next_packet(GUEST, &mut [0; 64]).unwrap().unwrap();
        assert_eq!(
            (update.op, update.fwd_cnt),
            (op::CREDIT_UPDATE, 5),
            "the OK line is not counted"
        );
    }

    #[test]
    fn data_to_the_guest_stays_within_its_credit() {
        let (mut c, mut theirs) = open();
        theirs.write_all(b"0123456789abcdef").unwrap();
        c.stream_event(EventSet::IN).unwrap();
        let mut data = [0; 6];
        assert_eq!(c.next_packet(GUEST, &mut data).unwrap().unwrap().len, 6);
        assert_eq!(c.next_packet(GUEST, &mut data).unwrap().unwrap().len, 4);
        assert_eq!(
            c.next_packet(GUEST, &mut data).unwrap().unwrap().op,
            op::CREDIT_REQUEST
        );
        assert!(!c.has_packet());
        assert_eq!(
            c.interest(),
            Some(EventSet::empty()),
            "no spinning on data that cannot be sent"
        );
        c.packet(&from_guest(op::CREDIT_UPDATE, 10, 3), &[])
            .unwrap();
        assert_eq!(c.next_packet(GUEST, &mut data).unwrap().unwrap().len, 3);
        assert_eq!(&data[..3], b"abc");
        c.packet(&from_guest(op::CREDIT_UPDATE, 10, 5000), &[])
            .unwrap();
        assert_eq!(
            c.next_packet(GUEST, &mut data).unwrap().unwrap().op,
            op::CREDIT_REQUEST,
            "a guest that counts wrongly"
        );
    }

    #[test]
    fn a_guest_that_ignores_its_credit_is_cut_off() {
        let (mut c, _theirs) = open();
        let chunk = vec![0; 64 << 10];
        let mut result = Ok(());
        for _ in 0..100 {
            result = c.packet(&from_guest(op::RW, 10, 0), &chunk);
            if result.is_err() {
                break;
            }
            assert!(c.to_host.len() <= BUFFER as usize);
        }
        assert_eq!(result, Err(LOUDLY));
    }

    #[test]
    fn credit_is_given_back_as_the_host_reads() {
        let (mut c, mut theirs) = open();
        let mut told = 0;
        for _ in 0..64 {
            c.packet(&from_guest(op::RW, 10, 0), &[7; 16 << 10])
                .unwrap();
            while !c.to_host.is_empty() {
                read_all(&mut theirs);
                c.stream_event(EventSet::OUT).unwrap();
            }
            read_all(&mut theirs);
            if let Some(h) = c.next_packet(GUEST, &mut []).unwrap() {
                assert_eq!(h.op, op::CREDIT_UPDATE);
                told = h.fwd_cnt;
            }
        }
        assert_eq!(told, 1 << 20);
    }

    #[test]
    fn each_direction_closes_by_itself() {
        let (mut c, mut theirs) = open();
        theirs.write_all(b"bye").unwrap();
        theirs.shutdown(std::net::Shutdown::Write).unwrap();
        c.stream_event(EventSet::IN).unwrap();
        let mut data = [0; 8];
        assert_eq!(c.next_packet(GUEST, &mut data).unwrap().unwrap().len, 3);
        let h = c.next_packet(GUEST, &mut data).unwrap().unwrap();
        assert_eq!((h.op, h.flags), (op::SHUTDOWN, SHUTDOWN_SEND));
        assert!(!c.has_packet());
        c.packet(&from_guest(op::RW, 10, 0), b"late").unwrap();
        assert_eq!(read_all(&mut theirs), b"late");
        let mut end = from_guest(op::SHUTDOWN, 10, 0);
        end.flags = SHUTDOWN_SEND;
        c.packet(&end, &[]).unwrap();
        assert_eq!(theirs.read(&mut data).unwrap(), 0);
        assert_eq!(c.packet(&from_guest(op::RW, 10, 0), b"x"), Err(LOUDLY));
        end.flags = BOTH;
        assert_eq!(c.packet(&end, &[]), Err(LOUDLY));
    }

    #[test]
    fn a_host_that_is_gone_shuts_both_directions() {
        let (mut c, mut theirs) = open();
        theirs.write_all(b"x").unwrap();
        drop(theirs);
        c.stream_event(EventSet::IN | EventSet::HANG_UP).unwrap();
        assert_eq!(c.interest(), None);
        let mut data = [0; 8];
        assert_eq!(c.next_packet(GUEST, &mut data).unwrap().unwrap().len, 1);
        assert_eq!(
            c.next_packet(GUEST, &mut data).unwrap().unwrap().flags,
            BOTH
        );
        assert_eq!(c.packet(&from_guest(op::RW, 10, 0), b"x"), Err(LOUDLY));
        assert_eq!(c.packet(&from_guest(op::RST, 10, 0), b""), Err(QUIETLY));
    }

    #[test]
    fn what_does_not_fit_the_state_ends_the_connection() {
        let (ours, _theirs) = pair();
        let mut c = Connection::from_host(KEY, ours);
        assert_eq!(
            c.packet(&from_guest(op::RESPONSE, 1, 0), &[]),
            Err(LOUDLY),
            "nobody asked yet"
        );
        for bad in [op::REQUEST, op::RESPONSE, 0, 99] {
            let (mut c, _theirs) = open();
            assert_eq!(c.packet(&from_guest(bad, 1, 0), &[]), Err(LOUDLY));
        }
    }
}
