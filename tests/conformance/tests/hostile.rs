//! Guests and peers that lie, for some seconds each, or for LONGARM_HOSTILE_SECONDS.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use conformance::hostile::commands::Commander;
use conformance::hostile::frames::Target;
use conformance::hostile::link::Port;
use conformance::hostile::rings::{Attacker, attack, scribble};
use conformance::hostile::victim::{Victim, canaries};
use conformance::hostile::{duration, seed};
use conformance::layout::command;
use conformance::random::{Random, Source};
use conformance::watchdog::Watchdog;
use conformance::world::{Kind, Options, World};

/// Little enough RAM that all of it is quickly looked at.
const PAGES: usize = 4096;

fn world(kind: Kind, threads: Option<Duration>) -> World {
    let world = World::with(
        kind,
        &Options {
            pages: PAGES,
            threads,
            ..Default::default()
        },
    );
    world.plant_canaries();
    world
}

/// Attacks anew from seed after seed until the time is over and the last one said that they have come to something.
fn rounds(what: &str, seconds: u64, mut one: impl FnMut(u64) -> bool) {
    let time = duration(seconds);
    let _watchdog = Watchdog::lasting(what, time);
    let (until, first) = (Instant::now() + time, seed(1));
    let (mut n, mut enough) = (0, false);
    while Instant::now() < until || !enough {
        eprintln!("{what}: seed {}", first + n);
        enough = one(first + n);
        n += 1;
    }
}

/// Acts of one attack before a new one begins.
const ACTS: u64 = 20_000;

fn rings(kind: Kind, what: &str, make: fn(&World, &Victim) -> Attacker) {
    rounds(what, 3, |seed| {
        let world = world(kind, None);
        let mut victim = Victim::new(&world);
        let mut attacker = make(&world, &victim);
        attack(
            &world,
            &mut victim,
            &mut attacker,
            &mut Random::new(seed),
            |n| n >= ACTS,
        );
        true
    });
}

#[test]
fn a_process_that_lies_in_its_rings_harms_nobody_over_loopback() {
    rings(Kind::Loopback, "process, loopback", Attacker::process);
}

#[test]
fn a_process_that_lies_in_its_rings_harms_nobody_over_a_pair() {
    rings(Kind::Pair, "process, pair", Attacker::process);
}

#[test]
fn a_process_that_lies_in_its_rings_harms_nobody_over_tcp() {
    rings(Kind::Tcp, "process, tcp", Attacker::process);
}

#[test]
fn a_kernel_that_lies_in_its_rings_harms_no_process() {
    rings(Kind::Pair, "kernel", Attacker::kernel);
}

#[test]
fn any_command_is_answered_and_harms_nobody() {
    let mut done = [0; command::ALL.len()];
    rounds("commands", 3, |seed| {
        let world = world(Kind::Loopback, None);
        let mut victim = Victim::new(&world);
        let mut commander = Commander::new(&world, &victim);
        commander.attack(&world, &mut victim, &mut Random::new(seed), |n| n >= ACTS);
        for (all, one) in done.iter_mut().zip(commander.done) {
            *all += one;
        }
        // Commands that are never carried out are no attack; that one is refused whenever a process gives it.
        let tried = |(opcode, count): (&u16, &u64)| *count > 0 || *opcode == command::ALLOC_MR;
        command::ALL.iter().zip(&done).all(tried)
    });
    eprintln!("commands carried out: {done:?}");
}

#[test]
fn any_frame_of_a_peer_is_taken_and_harms_nobody() {
    rounds("frames", 3, |seed| {
        let mut target = Target::new();
        target.attack(&mut Random::new(seed), |n| n >= ACTS);
        let answers = target.answers.iter().filter(|count| **count > 10).count();
        let refusals = target.refusals.iter().filter(|count| **count > 10).count();
        assert!(
            answers >= 5 && refusals >= 5 && target.shared > 10,
            "{:?} {:?} {}",
            target.answers,
            target.refusals,
            target.shared
        );
        true
    });
}

#[test]
fn any_bytes_at_a_port_are_taken_and_harm_nobody() {
    rounds("link", 3, |seed| {
        let mut port = Port::new();
        port.attack(&mut Random::new(seed), |n| n >= 2000);
        assert!(
            port.sent > 100_000 && port.closed > 10,
            "{} bytes, {} closed",
            port.sent,
            port.closed
        );
        true
    });
}

/// Ends the threads of a scope when the test ends, with a panic or without.
struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn rings_that_change_while_the_device_reads_them_harm_nobody() {
    let time = duration(4);
    let _watchdog = Watchdog::lasting("threaded", time);
    for kind in [Kind::Loopback, Kind::Tcp] {
        let world = world(kind, Some(Duration::from_micros(50)));
        let mut victim = Victim::new(&world);
        let mut attacker = Attacker::process(&world, &victim);
        let mut random = Random::new(seed(1));
        let until = Instant::now() + time / 2;
        let mut rounds = 0u64;
        while Instant::now() < until || rounds < 2 {
            // Two threads change the rings as fast as they can while the device reads them and the others work.
            let stop = &AtomicBool::new(false);
            std::thread::scope(|scope| {
                let _stop = StopOnDrop(stop);
                let buffers = attacker.rings();
                let (left, right) = buffers.split_at(buffers.len() / 2);
                for (n, mine) in [left.to_vec(), right.to_vec()].into_iter().enumerate() {
                    let mut random = Random::new(random.word() + n as u64);
                    scope.spawn(move || {
                        while !stop.load(Ordering::Relaxed) {
                            for _ in 0..64 {
                                scribble(
                                    mine[random.below(mine.len() as u64) as usize],
                                    &mut random,
                                );
                            }
                            std::thread::yield_now();
                        }
                    });
                }
                for _ in 0..8 {
                    victim.works(&world);
                    for node in world.nodes() {
                        for page in 0..8 {
                            node.bells.ring(page, 0);
                        }
                    }
                }
            });
            attacker.repair();
            for _ in 0..200 {
                attacker.act(&world, &mut random);
            }
            attacker.check();
            canaries(&world);
            rounds += 1;
        }
    }
}
