//! What handles guests: VMs as a user's script would run them, commands in them, tools that meet between two of them, perftest among these.

pub mod meeting;
pub mod perftest;
pub mod running;
pub mod vm;
