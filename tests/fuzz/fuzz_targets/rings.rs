//! Rings, control blocks and doorbells of a process, written by the fuzzer, on two devices whose other contexts are at work.
#![no_main]

use conformance::hostile::Bytes;
use conformance::hostile::rings::{Attacker, attack};
use conformance::hostile::victim::Victim;
use conformance::world::{Kind, Options, World};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let world = World::with(Kind::Pair, &Options { pages: 1024, ..Default::default() });
    world.plant_canaries();
    let mut victim = Victim::new(&world);
    let mut attacker = Attacker::process(&world, &victim);
    attack(&world, &mut victim, &mut attacker, &mut Bytes(data), |_| false);
});
