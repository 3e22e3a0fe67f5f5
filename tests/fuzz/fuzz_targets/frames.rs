//! Frames of a peer chosen by the fuzzer, to a device whose guest is at work.
#![no_main]

use conformance::hostile::Bytes;
use conformance::hostile::frames::Target;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    Target::new().attack(&mut Bytes(data), |_| false);
});
