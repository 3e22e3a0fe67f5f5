//! The device as a driver and host processes meet it.

use std::io::{Read, Write};
use std::time::Duration;

use super::packet::{HEADER, HOST_CID, Header, SHUTDOWN_RECEIVE, SHUTDOWN_SEND, TYPE_STREAM, op};
use super::*;
use crate::virtio::test_utils::{Driver, PATIENCE, R, TempDir, W};

const CID: u64 = 5;
const RX_BYTES: u32 = 4096;
const RX: usize = 0;
const TX: usize = 1;

struct Fixture {
    dir: TempDir,
    vsock: Vsock,
    queues: Vec<Driver>,
    /// Heads of receive buffers, by descriptor index: buffer `n` lies at `n * RX_BYTES`.
    received: Vec<(Header, Vec<u8>)>,
}

impl Fixture {
    fn new() -> Self {
        let dir = TempDir::new();
        let mut vsock = Vsock::new(CID as u32, &dir.0.join("v")).unwrap();
        let queues = Driver::queues(&QUEUE_SIZES);
        vsock.activate(Driver::activation(&queues, 0)).unwrap();
        let mut f = Self {
            dir,
            vsock,
            queues,
            received: vec![],
        };
        (0..16).for_each(|n| f.give_buffer(n));
        f
    }
    fn give_buffer(&mut self, n: u64) {
        self.queues[RX].send(&[(n * u64::from(RX_BYTES), RX_BYTES, W)]);
    }
    fn call(&self) -> UnixStream {
        let s = UnixStream::connect(self.dir.0.join("v")).unwrap();
        s.set_read_timeout(Some(PATIENCE)).unwrap();
        s
    }
    fn send(&mut self, header: Header, data: &[u8]) {
        let at = 0x20_0000;
        let header = Header {
            len: data.len() as u32,
            ..header
        };
        self.queues[TX].put(at, &header.encode());
        self.queues[TX].put(at + HEADER as u64, data);
        let len = data.len() as u32;
        let both = [(at, HEADER as u32, R), (at + HEADER as u64, len, R)];
        self.queues[TX].send(if len > 0 { &both } else { &both[..1] });
        self.queues[TX].wait_used(1);
    }
    fn guest(&self, op: u16, guest_port: u32, host_port: u32) -> Header {
        Header {
            src_cid: CID,
            dst_cid: HOST_CID,
            src_port: guest_port,
            dst_port: host_port,
            kind: TYPE_STREAM,
            op,
            buf_alloc: 1 << 20,
            ..Header::default()
        }
    }
    /// The next packet for the guest.
    fn receive(&mut self) -> (Header, Vec<u8>) {
        if self.received.is_empty() {
            for (head, len) in self.queues[RX].wait_used(1) {
                let at = u64::from(head % 16) * u64::from(RX_BYTES);
                let raw = self.queues[RX].bytes(at, HEADER).try_into().unwrap();
                let header = Header::decode(&raw);
                assert_eq!(len as usize, HEADER + header.len as usize);
                self.received.push((
                    header,
                    self.queues[RX].bytes(at + HEADER as u64, header.len as usize),
                ));
                self.give_buffer(u64::from(head % 16));
            }
        }
        self.received.remove(0)
    }
    fn receive_op(&mut self, op: u16) -> (Header, Vec<u8>) {
        let got = self.receive();
        assert_eq!(got.0.op, op, "{:?}", got.0);
        got
    }
}

fn line(s: &mut UnixStream) -> String {
    let mut text = String::new();
    let mut byte = [0];
    while s.read(&mut byte).unwrap() == 1 && byte[0] != b'\n' {
        text.push(byte[0] as char);
    }
    text
}

#[test]
fn the_host_talks_to_a_port_of_the_guest() {
    let mut f = Fixture::new();
    let mut s = f.call();
    s.write_all(b"CONNECT 1024\nearly").unwrap();
    let (request, _) = f.receive_op(op::REQUEST);
    assert_eq!(
        (request.src_cid, request.dst_cid, request.dst_port),
        (HOST_CID, CID, 1024)
    );
    let port = request.src_port;
    f.send(f.guest(op::RESPONSE, 1024, port), &[]);
    assert_eq!(line(&mut s), format!("OK {port}"));
    assert_eq!(f.receive_op(op::RW).1, b"early");
    f.send(f.guest(op::RW, 1024, port), b"answer");
    let mut got = [0; 6];
    s.read_exact(&mut got).unwrap();
    assert_eq!(&got, b"answer");
    let mut end = f.guest(op::SHUTDOWN, 1024, port);
    end.flags = SHUTDOWN_RECEIVE | SHUTDOWN_SEND;
    f.send(end, &[]);
    assert_eq!(f.receive_op(op::RST).0.dst_port, 1024);
    assert_eq!(s.read(&mut got).unwrap(), 0);
}

#[test]
fn a_large_transfer_arrives_whole() {
    let mut f = Fixture::new();
    let mut s = f.call();
    s.write_all(b"CONNECT 9\n").unwrap();
    let port = f.receive_op(op::REQUEST).0.src_port;
    f.send(f.guest(op::RESPONSE, 9, port), &[]);
    line(&mut s);
    let sent: Vec<u8> = (0..3_000_000u32).map(|i| (i * 7 + i / 251) as u8).collect();
    let to_send = sent.clone();
    let writer = std::thread::spawn(move || {
        s.write_all(&to_send).unwrap();
        s
    });
    let mut got = Vec::new();
    while got.len() < sent.len() {
        let (header, data) = f.receive();
        if header.op == op::RW {
            got.extend(data);
        }
        let mut update = f.guest(op::CREDIT_UPDATE, 9, port);
        update.buf_alloc = 10_000;
        update.fwd_cnt = got.len() as u32;
        f.send(update, &[]);
    }
    assert!(got == sent);
    drop(writer.join().unwrap());
    let mut flags = 0;
    while flags != SHUTDOWN_RECEIVE | SHUTDOWN_SEND {
        flags = f.receive_op(op::SHUTDOWN).0.flags;
    }
    f.send(f.guest(op::RST, 9, port), &[]);
    f.send(f.guest(op::RW, 9, port), b"x");
    f.receive_op(op::RST);
}

#[test]
fn a_port_that_nobody_listens_on_closes_the_stream() {
    let mut f = Fixture::new();
    let mut s = f.call();
    s.write_all(b"CONNECT 7\n").unwrap();
    let port = f.receive_op(op::REQUEST).0.src_port;
    f.send(f.guest(op::RST, 7, port), &[]);
    assert_eq!(s.read(&mut [0]).unwrap(), 0);
}

#[test]
fn callers_that_do_not_speak_are_hung_up_on() {
    let f = Fixture::new();
    for text in [
        &b"HELLO\n"[..],
        b"CONNECT x\n",
        b"CONNECT 4294967296\n",
        b"CONNECT 1                                    \n",
    ] {
        let mut s = f.call();
        // May fail when the device hangs up before all is written.
        let _ = s.write_all(text);
        assert!(matches!(s.read(&mut [0]), Ok(0) | Err(_)));
    }
}

#[test]
fn the_guest_talks_to_a_listener_of_the_host() {
    let mut f = Fixture::new();
    f.send(f.guest(op::REQUEST, 40, 50), &[]);
    assert_eq!(f.receive_op(op::RST).0.dst_port, 40, "nobody listens");
    let listener = UnixListener::bind(f.dir.0.join("v_50")).unwrap();
    f.send(f.guest(op::REQUEST, 40, 50), &[]);
    f.receive_op(op::RESPONSE);
    let (mut s, _) = listener.accept().unwrap();
    f.send(f.guest(op::RW, 40, 50), b"hi");
    let mut got = [0; 2];
    s.read_exact(&mut got).unwrap();
    assert_eq!(&got, b"hi");
    s.write_all(b"yo").unwrap();
    assert_eq!(f.receive_op(op::RW).1, b"yo");
    f.send(f.guest(op::REQUEST, 40, 50), &[]);
    f.receive_op(op::RST);
}

#[test]
fn packets_that_make_no_sense_are_answered_or_dropped() {
    let mut f = Fixture::new();
    for op in [op::RW, op::RESPONSE, op::SHUTDOWN, 99] {
        f.send(f.guest(op, 1, 2), &[]);
        f.receive_op(op::RST);
    }
    let mut other = f.guest(op::REQUEST, 1, 2);
    other.kind = 7;
    f.send(other, &[]);
    assert_eq!(f.receive_op(op::RST).0.kind, 7);
    f.send(f.guest(op::RST, 1, 2), &[]);
    let mut stray = f.guest(op::REQUEST, 1, 2);
    stray.dst_cid = 9;
    f.send(stray, &[]);
    stray = f.guest(op::REQUEST, 1, 2);
    stray.src_cid = 9;
    f.send(stray, &[]);
    // Too short for a header, a length that lies, no memory.
    f.queues[TX].send(&[(0x20_0000, 43, R)]);
    let mut lie = f.guest(op::RW, 1, 2);
    lie.len = 5000;
    f.queues[TX].put(0x20_0000, &lie.encode());
    f.queues[TX].send(&[(0x20_0000, 44, R)]);
    lie.len = u32::MAX;
    f.queues[TX].put(0x21_0000, &lie.encode());
    f.queues[TX].send(&[(0x21_0000, 44, R)]);
    f.queues[TX].send(&[(1 << 45, 44, R)]);
    f.queues[TX].wait_used(4);
    f.receive_op(op::RST);
    std::thread::sleep(Duration::from_millis(20));
    assert!(f.queues[RX].used().is_empty());
}

#[test]
fn resets_that_the_guest_does_not_read_are_bounded_and_useless_buffers_come_back() {
    let mut f = Fixture::new();
    for _ in 0..400 {
        f.send(f.guest(op::RW, 1, 2), &[]);
    }
    assert_eq!(f.queues[RX].wait_used(16).len(), 16);
    f.queues[RX].send(&[(0, 10, W)]);
    assert_eq!(f.queues[RX].wait_used(1)[0].1, 0, "too small for a header");
    let mut s = f.call();
    s.write_all(b"CONNECT 7\n").unwrap();
    let mut resets = 0;
    loop {
        f.queues[RX].send(&[(0, RX_BYTES, W)]);
        f.queues[RX].wait_used(1);
        match Header::decode(&f.queues[RX].bytes(0, HEADER).try_into().unwrap()).op {
            op::RST => resets += 1,
            op::REQUEST => break,
            other => panic!("{other}"),
        }
    }
    assert_eq!(
        resets, 255,
        "256 were kept, one of which the small buffer lost"
    );
}

#[test]
fn a_reset_closes_the_streams_and_a_new_start_serves_new_ones() {
    let mut f = Fixture::new();
    let mut s = f.call();
    s.write_all(b"CONNECT 7\n").unwrap();
    f.receive_op(op::REQUEST);
    f.vsock.reset();
    assert_eq!(s.read(&mut [0]).unwrap(), 0);
    let mut waiting = f.call();
    waiting.write_all(b"CONNECT 8\n").unwrap();
    f.queues = Driver::queues(&QUEUE_SIZES);
    f.vsock.activate(Driver::activation(&f.queues, 0)).unwrap();
    (0..16).for_each(|n| f.give_buffer(n));
    assert_eq!(f.receive_op(op::REQUEST).0.dst_port, 8);
}

#[test]
fn the_socket_is_made_once_and_removed() {
    let dir = TempDir::new();
    let path = dir.0.join("v");
    drop(UnixListener::bind(&path).unwrap());
    let first = Vsock::new(3, &path).expect("a stale socket is replaced");
    assert!(
        Vsock::new(4, &path)
            .err()
            .unwrap()
            .to_string()
            .contains("in use")
    );
    let mut cid = [0; 8];
    first.read_config(0, &mut cid);
    assert_eq!(u64::from_le_bytes(cid), 3);
    drop(first);
    assert!(!path.exists());
    assert!(matches!(Vsock::new(2, &path), Err(VsockError::Cid(2))));
}
