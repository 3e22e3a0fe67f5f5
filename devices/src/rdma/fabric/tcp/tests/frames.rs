//! Frames on a link: every size, cut at every place, more than there is room for, from and into memory that goes.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::time::Instant;

use super::*;
use crate::rdma::fabric::frame::{FrameHeader, HEADER_LEN, kind};
use crate::rdma::fabric::test_utils::Event;
use crate::rdma::fabric::{Fabric, PeerId, Placement, SendError, Sink};
use crate::rdma::memory::Segment;

#[test]
fn frames_of_all_sizes_cross_both_ways_in_order() {
    let (mut left, mut right) = linked();
    let sizes = [
        0, 1, 47, 48, 49, 64, 256, 257, 4095, 4096, 4097, 65_535, 65_536,
    ];
    let mut payloads: Vec<Vec<u8>> = (0..200)
        .map(|i| bytes(i, sizes[i * 7 % sizes.len()]))
        .collect();
    let expected = payloads.clone();
    let mut sent = [0, 0];
    run(&mut [&mut left, &mut right], |nodes| {
        for (node, sent) in nodes.iter_mut().zip(&mut sent) {
            while *sent < payloads.len() && node.send(kind::WRITE, &mut payloads[*sent]).is_ok() {
                *sent += 1;
            }
        }
        nodes
            .iter()
            .all(|node| node.sink.frames() == expected.len())
    });
    assert_eq!(left.sink.payloads(), expected);
    assert_eq!(right.sink.payloads(), expected);
    let counters = right.counters();
    // The GIDs, and what was sent.
    assert_eq!(counters.rx_frames, 201);
    assert_eq!(counters.tx_frames, 201);
    let bytes: usize = expected.iter().map(|payload| payload.len() + 48).sum();
    assert_eq!(counters.rx_bytes, (bytes + 48 + FRAME_LEN) as u64);
    assert_eq!(counters.tx_bytes, counters.rx_bytes);
}

#[test]
fn small_frames_share_system_calls_and_large_ones_are_not_staged() {
    let (mut left, mut right) = linked();
    let before = left.counters();
    let mut payload = bytes(1, 64);
    for _ in 0..1000 {
        left.send(kind::WRITE, &mut payload).unwrap();
    }
    left.fabric.flush();
    run(&mut [&mut left, &mut right], |nodes| {
        nodes[1].sink.frames() == 1000
    });
    let after = left.counters();
    assert!(after.tx_calls - before.tx_calls <= 4);
    assert!(right.counters().rx_calls < 20);

    let before = right.counters();
    let mut payload = bytes(2, 65_536);
    let mut sent = 0;
    run(&mut [&mut left, &mut right], |nodes| {
        while sent < 200 && nodes[0].send(kind::WRITE, &mut payload).is_ok() {
            sent += 1;
        }
        nodes[1].sink.frames() == 1200
    });
    let after = right.counters();
    // Of 13 MB, what came before the fabric expected large ones.
    assert!(after.rx_staged - before.rx_staged < 2 * 65_536);
}

#[test]
fn every_boundary_of_partial_reads_and_writes_is_survived() {
    // Buffers far smaller than the frames, so that every call is cut short somewhere.
    let (mut left, mut right) = linked_with(|config| config.send_buffer = Some(1));
    let sizes = [0, 1, 100, 300, 1000, 5000, 20_000];
    let mut payloads: Vec<Vec<u8>> = (0..150)
        .map(|i| bytes(i, sizes[i * 5 % sizes.len()] + i))
        .collect();
    let expected = payloads.clone();
    let mut sent = [0, 0];
    run(&mut [&mut left, &mut right], |nodes| {
        for (node, sent) in nodes.iter_mut().zip(&mut sent) {
            if *sent < payloads.len() && node.send(kind::SEND, &mut payloads[*sent]).is_ok() {
                *sent += 1;
            }
        }
        nodes.iter().all(|node| node.sink.frames() == 150)
    });
    assert_eq!(left.sink.payloads(), expected);
    assert_eq!(right.sink.payloads(), expected);
}

#[test]
fn a_stream_cut_at_every_place_is_put_together() {
    let mut node = Node::new(any_port());
    let mut stream = stranger(&mut node, [9; 16]);
    stream.set_nodelay(true).unwrap();
    let mut wire = Vec::new();
    let mut expected = Vec::new();
    for (i, (frame_kind, length)) in [
        (kind::WRITE, 3),
        (kind::ACK, 0),
        (kind::ATOMIC, 16),
        (kind::DATAGRAM, 45),
        (kind::SEND, 70),
    ]
    .into_iter()
    .enumerate()
    {
        let header = header_of(frame_kind, length);
        let payload = bytes(i, length as usize);
        wire.extend(header.encode());
        wire.extend(&payload);
        expected.push(payload);
    }
    let mut frames = 0;
    for cut in 1..wire.len() {
        stream.write_all(&wire[..cut]).unwrap();
        let fed = node.counters().rx_bytes;
        run(&mut [&mut node], |nodes| {
            nodes[0].counters().rx_bytes >= fed + cut as u64
        });
        stream.write_all(&wire[cut..]).unwrap();
        frames += expected.len();
        run(&mut [&mut node], |nodes| nodes[0].sink.frames() == frames);
        let payloads = node.sink.payloads();
        assert_eq!(
            payloads[frames - expected.len()..],
            expected,
            "cut at {cut}"
        );
    }
}

#[test]
fn a_peer_dies_in_the_middle_of_a_frame() {
    for given in [1, 47, 48, 49, 1000, 9999] {
        let mut node = Node::new(any_port());
        let mut stream = stranger(&mut node, [9; 16]);
        let peer = node.peer();
        let header = header_of(kind::WRITE, 10_000);
        let mut wire = header.encode().to_vec();
        wire.extend(bytes(3, 10_000));
        stream.write_all(&wire[..given]).unwrap();
        drop(stream);
        run(&mut [&mut node], |nodes| !nodes[0].linked());
        assert_eq!(node.count(&Event::Down(peer)), 1);
        assert_eq!(node.sink.frames(), 0);
        assert!(node.fabric.last_heard(peer).is_some());
    }
}

#[test]
fn tx_frames_before_the_end_of_a_link_arrive() {
    let mut node = Node::new(any_port());
    let mut stream = stranger(&mut node, [9; 16]);
    let header = header_of(kind::SEND, 1000);
    for i in 0..300 {
        stream.write_all(&header.encode()).unwrap();
        stream.write_all(&bytes(i, 1000)).unwrap();
    }
    stream.shutdown(Shutdown::Write).unwrap();
    run(&mut [&mut node], |nodes| !nodes[0].linked());
    assert_eq!(node.sink.frames(), 300);
}

#[test]
fn a_queue_that_fills_says_so_and_keeps_room_for_acknowledgements() {
    let mut node = Node::new(any_port());
    let mut stream = stranger(&mut node, [9; 16]);
    let peer = node.peer();
    let mut payload = bytes(1, 65_536);
    let mut sent = 0;
    loop {
        match node.send(kind::WRITE, &mut payload) {
            Ok(()) => sent += 1,
            Err(SendError::Full) => {
                let before = node.counters().tx_bytes;
                node.fabric.flush();
                if node.counters().tx_bytes == before {
                    break;
                }
            }
            Err(SendError::Down) => panic!("link lost"),
        }
    }
    assert!(!node.fabric.can_send(peer, 0) && node.fabric.is_up(peer));
    let ack = header_of(kind::ACK, 0);
    let mut acks = 0;
    while acks < 10_000 && node.fabric.send(peer, &ack, &[], &[]).is_ok() {
        acks += 1;
    }
    assert_eq!(acks, 10_000);
    while node.fabric.send(peer, &ack, &[], &[]).is_ok() {
        acks += 1;
    }
    // It has a bound, and what was taken arrives.
    let total = 48 + sent * (65_536 + 48) + acks * 48;
    let reader = std::thread::spawn(move || {
        let mut got = vec![0; total];
        stream.read_exact(&mut got).unwrap();
        (stream, got)
    });
    run(&mut [&mut node], |nodes| {
        nodes[0].fabric.can_send(peer, 0)
            && nodes[0].counters().tx_bytes >= (FRAME_LEN + total) as u64
    });
    let (_stream, got) = reader.join().unwrap();
    assert_eq!(got[48 + 48..48 + 48 + 65_536], payload);
    assert_eq!(got[total - 48], kind::ACK);
}

#[test]
fn queued_payloads_are_copied_when_memory_is_let_go_of() {
    let mut node = Node::new(any_port());
    let mut stream = stranger(&mut node, [9; 16]);
    let mut sent = Vec::new();
    let mut buffers = Vec::new();
    // More than the socket takes, so that the first queued frame is half sent.
    for i in 0.. {
        let mut buffer = bytes(i, 30_000 + i);
        if node.send(kind::WRITE, &mut buffer).is_err() {
            let before = node.counters().tx_bytes;
            node.fabric.flush();
            if node.counters().tx_bytes == before {
                break;
            }
            continue;
        }
        sent.push(buffer.clone());
        buffers.push(buffer);
    }
    node.fabric.forget_memory();
    buffers.iter_mut().for_each(|buffer| buffer.fill(0));
    let expected = sent.clone();
    let reader = std::thread::spawn(move || {
        let mut skipped = [0; 48];
        stream.read_exact(&mut skipped).unwrap();
        for payload in &expected {
            let mut got = vec![0; HEADER_LEN + payload.len()];
            stream.read_exact(&mut got).unwrap();
            assert!(got[HEADER_LEN..] == payload[..]);
        }
        stream
    });
    let total: usize = sent.iter().map(|payload| payload.len() + 48).sum();
    run(&mut [&mut node], |nodes| {
        nodes[0].counters().tx_bytes >= (FRAME_LEN + 48 + total) as u64
    });
    reader.join().unwrap();
}

#[test]
fn a_payload_that_is_being_read_is_asked_for_anew() {
    let mut node = Node::new(any_port());
    let mut stream = stranger(&mut node, [9; 16]);
    let header = header_of(kind::WRITE, 50_000);
    let payload = bytes(4, 50_000);
    stream.write_all(&header.encode()).unwrap();
    let mut at = 0;
    for part in [0, 10_000, 20_000] {
        stream.write_all(&payload[at..at + part]).unwrap();
        at += part;
        let fed = (FRAME_LEN + 48 + at) as u64;
        run(&mut [&mut node], |nodes| {
            nodes[0].counters().rx_bytes >= fed
        });
        node.fabric.forget_memory();
        node.sink.move_memory();
    }
    // The last time, the device has no use for it any more, and is not asked again.
    node.sink.discard = true;
    stream.write_all(&payload[at..at + 5000]).unwrap();
    at += 5000;
    let fed = (FRAME_LEN + 48 + at) as u64;
    run(&mut [&mut node], |nodes| {
        nodes[0].counters().rx_bytes >= fed
    });
    node.fabric.forget_memory();
    node.sink.discard = false;
    stream.write_all(&payload[at..]).unwrap();
    run(&mut [&mut node], |nodes| nodes[0].sink.frames() == 1);
    assert_eq!(node.sink.skips, [10_000, 30_000]);
    assert!(matches!(
        node.sink.events.last(),
        Some(Event::Frame {
            placement: Placement::Discard,
            ..
        })
    ));
    // The stream is still understood.
    stream.write_all(&header.encode()).unwrap();
    stream.write_all(&payload).unwrap();
    run(&mut [&mut node], |nodes| nodes[0].sink.frames() == 2);
    assert_eq!(node.sink.payloads()[1], payload);
}

/// A sink whose segments are no memory.
struct NoMemory;

impl Sink for NoMemory {
    fn place(
        &mut self,
        _: PeerId,
        header: &FrameHeader,
        skip: u32,
        into: &mut Vec<Segment>,
    ) -> Placement {
        into.push(Segment {
            base: std::ptr::without_provenance_mut(4096),
            len: (header.length - skip) as usize,
        });
        Placement::Into
    }
    fn frame(&mut self, _: PeerId, _: &FrameHeader, _: Placement, _: &[u8]) {
        panic!("nothing can have been placed");
    }
    fn peer_up(&mut self, _: PeerId) {}
    fn peer_down(&mut self, _: PeerId) {}
    fn routes_changed(&mut self) {}
}

#[test]
fn memory_that_is_not_there_ends_the_link_and_not_the_process() {
    let mut node = Node::new(any_port());
    let mut stream = stranger(&mut node, [9; 16]);
    let header = header_of(kind::WRITE, 50_000);
    stream.write_all(&header.encode()).unwrap();
    let fed = node.counters().rx_bytes;
    let deadline = Instant::now() + PATIENCE;
    // The header alone first: what is staged would be copied by us.
    while node.counters().rx_bytes < fed + 48 || node.fabric.poll(&mut NoMemory) {
        node.fabric.poll(&mut NoMemory);
        assert!(Instant::now() < deadline);
    }
    stream.write_all(&bytes(1, 50_000)).unwrap();
    while node.linked() {
        node.fabric.poll(&mut NoMemory);
        assert!(Instant::now() < deadline);
    }
    // The same for what is to be sent.
    let _stream = stranger(&mut node, [8; 16]);
    let peer = node.peer();
    let nowhere = Segment {
        base: std::ptr::without_provenance_mut(4096),
        len: 5000,
    };
    let header = header_of(kind::WRITE, 5000);
    node.fabric.send(peer, &header, &[], &[nowhere]).unwrap();
    run(&mut [&mut node], |nodes| !nodes[0].linked());
}

#[test]
fn both_queue_pairs_may_be_here() {
    let mut node = Node::new(any_port());
    let header = header_of(kind::SEND, 4);
    node.fabric
        .send(PeerId::LOCAL, &header, &[1, 2, 3, 4], &[])
        .unwrap();
    assert!(node.poll());
    assert_eq!(node.sink.payloads(), [[1, 2, 3, 4]]);
}
