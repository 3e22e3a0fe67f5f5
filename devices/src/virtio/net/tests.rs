//! The device between a driver and a backend made of channels.

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixDatagram;
use std::time::Duration;

use super::*;
use crate::virtio::test_utils::{Driver, PATIENCE, R, W, wait_until};

/// A datagram socket keeps frames apart, as a cable does.
struct Socket(UnixDatagram);

impl Backend for Socket {
    fn send(&mut self, frame: &[u8]) -> io::Result<()> {
        self.0.send(frame).map(|_| ())
    }
    fn receive(&mut self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        match self.0.recv(buffer) {
            Ok(n) => Ok(Some(n)),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(e) => Err(e),
        }
    }
    fn wait_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

const MAC: MacAddress = MacAddress([2, 0, 0, 0, 0, 9]);

struct Fixture {
    net: Net,
    peer: UnixDatagram,
    queues: Vec<Driver>,
}

impl Fixture {
    fn new() -> Self {
        let (ours, peer) = UnixDatagram::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        peer.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut net = Net::new(MAC, Some(9000), Box::new(Socket(ours))).unwrap();
        let queues = Driver::queues(&QUEUE_SIZES);
        net.activate(Driver::activation(&queues, 0)).unwrap();
        Self { net, peer, queues }
    }
    fn transmit(&mut self, frame: &[u8]) {
        let tx = &mut self.queues[usize::from(TX)];
        tx.put(0x1_0000, &[0; HEADER]);
        tx.put(0x2_0000, frame);
        let (half, rest) = (frame.len() / 2, frame.len() - frame.len() / 2);
        tx.send(&[
            (0x1_0000, 12, R),
            (0x2_0000, half as u32, R),
            (0x2_0000 + half as u64, rest as u32, R),
        ]);
        tx.wait_used(1);
    }
    fn next_sent(&self) -> Vec<u8> {
        let mut buffer = vec![0; 70_000];
        let n = self.peer.recv(&mut buffer).unwrap();
        buffer.truncate(n);
        buffer
    }
    fn rx(&mut self) -> &mut Driver {
        &mut self.queues[usize::from(RX)]
    }
    fn dropped(&self) -> (u64, u64) {
        let c = &self.net.counters;
        (
            c.tx_dropped.load(Ordering::Relaxed),
            c.rx_dropped.load(Ordering::Relaxed),
        )
    }
}

#[test]
fn frames_go_out_whole_and_without_header() {
    let mut f = Fixture::new();
    for len in [14, 60, 1514, 9014, 40_000] {
        let frame: Vec<u8> = (0..len).map(|i| (i * 7) as u8).collect();
        f.transmit(&frame);
        assert!(f.next_sent() == frame);
    }
    assert_eq!(f.dropped(), (0, 0));
}

#[test]
fn frames_that_are_none_are_dropped() {
    let mut f = Fixture::new();
    f.transmit(&[1; 13]);
    f.transmit(&vec![1; MAX_FRAME + 1]);
    let tx = &mut f.queues[usize::from(TX)];
    tx.send(&[(0x1_0000, 5, R)]);
    tx.send(&[(0x1_0000, 12, R), (1 << 44, 60, R)]);
    tx.send(&[(0x1_0000, 100, W)]);
    tx.wait_used(3);
    f.transmit(&[7; 60]);
    assert_eq!(f.next_sent(), [7; 60]);
    assert_eq!(f.dropped().0, 5);
}

#[test]
fn frames_come_in_with_a_header_and_over_several_buffers() {
    let mut f = Fixture::new();
    f.rx()
        .send(&[(0x1000, 12, W), (0x2000, 100, W), (0x3000, 2000, W)]);
    let frame: Vec<u8> = (0..1514).map(|i| (i * 11) as u8).collect();
    f.peer.send(&frame).unwrap();
    assert_eq!(f.rx().wait_used(1)[0].1, 1526);
    assert_eq!(
        f.rx().bytes(0x1000, 12),
        [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0]
    );
    let got = [f.rx().bytes(0x2000, 100), f.rx().bytes(0x3000, 1414)].concat();
    assert!(got == frame);
}

#[test]
fn frames_wait_for_buffers_and_the_thread_sleeps_meanwhile() {
    let mut f = Fixture::new();
    for n in 0..5u8 {
        f.peer.send(&[n; 60]).unwrap();
    }
    std::thread::sleep(Duration::from_millis(20));
    assert!(f.rx().used().is_empty());
    for n in 0..5 {
        f.rx().send(&[(0x1000 * (n + 1), 2048, W)]);
    }
    f.rx().wait_used(5);
    for n in 0..5u8 {
        assert_eq!(f.rx().bytes(0x1000 * (u64::from(n) + 1) + 12, 60), [n; 60]);
    }
}

#[test]
fn a_frame_too_long_for_the_buffer_is_dropped_and_the_buffer_kept() {
    let mut f = Fixture::new();
    f.rx().send(&[(0x1000, 100, W)]);
    f.peer.send(&[1; 89]).unwrap();
    f.peer.send(&[2; 88]).unwrap();
    assert_eq!(f.rx().wait_used(1)[0].1, 100);
    assert_eq!(f.rx().bytes(0x1000 + 12, 88), [2; 88]);
    assert_eq!(f.dropped().1, 1);
    f.rx().send(&[(0x1000, 20, W)]);
    f.rx().send(&[(1 << 44, 2000, W)]);
    f.peer.send(&[3; 60]).unwrap();
    f.peer.send(&[4; 60]).unwrap();
    let used = f.rx().wait_used(2);
    assert_eq!(
        (used[0].1, used[1].1, f.dropped().1),
        (0, 0, 3),
        "useless buffers come back"
    );
}

#[test]
fn a_pulled_cable_carries_nothing_and_the_driver_is_told() {
    let mut f = Fixture::new();
    let link = f.net.link();
    let interrupts = f.queues[0].interrupt.clone();
    let status = |net: &Net| {
        let mut s = [0; 2];
        net.read_config(6, &mut s);
        s[0]
    };
    assert_eq!(status(&f.net), 1);
    link.set(false);
    link.set(false);
    assert_eq!((status(&f.net), interrupts.configs()), (0, 1));
    f.transmit(&[1; 60]);
    f.rx().send(&[(0x1000, 2000, W)]);
    f.peer.send(&[2; 60]).unwrap();
    wait_until(|| f.dropped() == (1, 1));
    link.set(true);
    assert_eq!(interrupts.configs(), 2);
    f.transmit(&[3; 60]);
    assert_eq!(f.next_sent(), [3; 60]);
    f.peer.send(&[4; 60]).unwrap();
    f.rx().wait_used(1);
    assert_eq!(f.rx().bytes(0x1000 + 12, 60), [4; 60]);
    f.net.reset();
    link.set(false);
    assert_eq!(interrupts.configs(), 2, "no driver to tell");
}

#[test]
fn a_reset_stops_the_thread_and_the_backend_is_kept() {
    let mut f = Fixture::new();
    f.net.reset();
    f.rx().send(&[(0x1000, 2000, W)]);
    f.peer.send(&[2; 60]).unwrap();
    std::thread::sleep(Duration::from_millis(20));
    assert!(f.rx().used().is_empty());
    f.queues = Driver::queues(&QUEUE_SIZES);
    f.net.activate(Driver::activation(&f.queues, 0)).unwrap();
    f.rx().send(&[(0x1000, 2000, W)]);
    f.rx().wait_used(1);
    f.queues[usize::from(TX)].set_avail_idx(7000);
    f.queues[usize::from(TX)].kick.write(1).unwrap();
    let interrupts = f.queues[0].interrupt.clone();
    wait_until(|| interrupts.resets_asked() == 1);
}

#[test]
fn configuration_and_its_limits() {
    let f = Fixture::new();
    let mut config = [0; 16];
    f.net.read_config(0, &mut config);
    assert_eq!(
        config,
        [2, 0, 0, 0, 0, 9, 1, 0, 1, 0, 0x28, 0x23, 0, 0, 0, 0]
    );
    assert_ne!(f.net.features() & 1 << VIRTIO_NET_F_MTU, 0);
    for mtu in [0, 67, 65522] {
        let (a, _b) = UnixDatagram::pair().unwrap();
        assert_eq!(
            Net::new(MAC, Some(mtu), Box::new(Socket(a))).err(),
            Some(BadMtu(mtu))
        );
    }
}

#[test]
fn addresses_are_parsed_strictly() {
    assert_eq!(
        "02:0a:ff:00:00:01".parse(),
        Ok(MacAddress([2, 10, 255, 0, 0, 1]))
    );
    assert_eq!(
        MacAddress([2, 10, 255, 0, 0, 1]).to_string(),
        "02:0a:ff:00:00:01"
    );
    for bad in [
        "",
        "02:00:00:00:00",
        "02:00:00:00:00:00:00",
        "2:0:0:0:0:1",
        "01:00:00:00:00:00",
        "00:00:00:00:00:00",
        "+2:00:00:00:00:01",
    ] {
        assert!(bad.parse::<MacAddress>().is_err(), "{bad}");
    }
}

/// A backend that is gone, as a tap interface that somebody deleted: ready for ever, and an error each time.
struct Gone(UnixDatagram);

impl Backend for Gone {
    fn send(&mut self, _: &[u8]) -> io::Result<()> {
        Err(io::ErrorKind::NotConnected.into())
    }
    fn receive(&mut self, _: &mut [u8]) -> io::Result<Option<usize>> {
        Err(io::ErrorKind::NotConnected.into())
    }
    fn wait_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

#[test]
fn a_backend_that_is_gone_is_left_alone_and_the_device_lives_on() {
    let (ours, peer) = UnixDatagram::pair().unwrap();
    peer.send(b"always readable").unwrap();
    let mut f = Fixture::new();
    f.net = Net::new(MAC, None, Box::new(Gone(ours))).unwrap();
    f.queues = Driver::queues(&QUEUE_SIZES);
    f.net.activate(Driver::activation(&f.queues, 0)).unwrap();
    f.rx().send(&[(0x1000, 2000, W)]);
    f.transmit(&[1; 60]);
    f.transmit(&[1; 60]);
    assert_eq!(f.dropped().0, 2);
    assert!(f.rx().used().is_empty());
}
