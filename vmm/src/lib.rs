//! The monitor: builds a machine of `arch`'s and `devices`' parts as an `api` configuration says, runs its vCPUs, and ends
//! with it.
//!
//! | module | holds |
//! | --- | --- |
//! | [`cli`] | the `longarm` command |
//! | [`machine`] | a machine from configuration to end |
//! | [`hypervisor`], [`memory`], [`vcpu`], [`interrupts`], [`kvm_stats`] | what KVM gives: memory, vCPUs, interrupts, I/O events, counters |
//! | [`console`] | the serial console's host end |
//! | [`control`] | the control socket |
//! | [`outcome`] | how a machine ends, exit statuses |

pub mod cli;
pub mod console;
pub mod control;
pub mod hypervisor;
pub mod interrupts;
pub mod kvm_stats;
mod logger;
pub mod machine;
pub mod memory;
pub mod outcome;
pub mod vcpu;
