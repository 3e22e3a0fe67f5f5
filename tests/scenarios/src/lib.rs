//! What handles guests: VMs as a user's script would run them, commands in them, perftest between two of them.

pub mod perftest;
pub mod running;
pub mod vm;
