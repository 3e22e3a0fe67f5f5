//! Bytes chosen by the fuzzer, to the port of a monitor whose peers are at work.
#![no_main]

use conformance::hostile::Bytes;
use conformance::hostile::link::Port;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    Port::new().attack(&mut Bytes(data), |_| false);
});
