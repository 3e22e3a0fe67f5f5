//! Commands chosen by the fuzzer, to a device whose other contexts are at work.
#![no_main]

use conformance::hostile::Bytes;
use conformance::hostile::commands::Commander;
use conformance::hostile::victim::Victim;
use conformance::world::{Kind, Options, World};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let world = World::with(Kind::Loopback, &Options { pages: 1024, ..Default::default() });
    world.plant_canaries();
    let mut victim = Victim::new(&world);
    let mut commander = Commander::new(&world, &victim);
    commander.attack(&world, &mut victim, &mut Bytes(data), |_| false);
});
