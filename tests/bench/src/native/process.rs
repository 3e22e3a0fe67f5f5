//! What the host knows about this process and its threads.

use std::fs;
use std::io;
use std::ops::Add;
use std::sync::OnceLock;
use std::time::Duration;

use conformance::counting::allocations;
use perf_event::events::Tracepoint;
use perf_event::{Builder, Counter};
use serde::{Deserialize, Serialize};

/// The processors that the process was given.
static GIVEN: OnceLock<libc::cpu_set_t> = OnceLock::new();

/// Binds this thread, and those that it makes, to one of the processors that the process was given, so that no figure depends on
/// where the scheduler puts it; `None`: to all of them again. Without effect where there are fewer than two.
pub fn pin(place: Option<usize>) {
    let given = GIVEN.get_or_init(given);
    let mut set = *given;
    if let Some(place) = place {
        // SAFETY: numbers below the set's size.
        let usable: Vec<usize> = (0..libc::CPU_SETSIZE as usize)
            .filter(|cpu| unsafe { libc::CPU_ISSET(*cpu, given) })
            .collect();
        if usable.len() < 2 {
            return;
        }
        // SAFETY: as above.
        unsafe {
            libc::CPU_ZERO(&mut set);
            libc::CPU_SET(usable[place % usable.len()], &mut set);
        }
    }
    // SAFETY: a set of that size; 0 is this thread. That it fails costs steadiness, no more.
    unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set) };
}

fn given() -> libc::cpu_set_t {
    // SAFETY: all bytes zero is an empty set, which the kernel fills; should it not, nothing is ever bound.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut set);
        set
    }
}

/// What a stretch of work took of the machine.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Usage {
    /// Processor time of the whole process, user and system.
    pub processor: Duration,
    /// Allocations of this thread.
    pub allocations: u64,
    /// System calls of this thread, where they were counted.
    pub calls: Option<u64>,
    /// Of them, those that sent or received, by the program's own count.
    pub transfers: u64,
}

impl Add for Usage {
    type Output = Usage;
    fn add(self, other: Usage) -> Usage {
        Usage {
            processor: self.processor + other.processor,
            allocations: self.allocations + other.allocations,
            calls: self.calls.zip(other.calls).map(|(a, b)| a + b),
            transfers: self.transfers + other.transfers,
        }
    }
}

/// Takes note of what a stretch of work takes.
pub struct Meter {
    processor: Duration,
    allocations: usize,
    calls: Option<Counter>,
}

impl Meter {
    /// From now on. Counting system calls makes each of them slower.
    pub fn start(count_calls: bool) -> Meter {
        let mut calls = count_calls.then(|| call_counter().ok()).flatten();
        if let Some(counter) = &mut calls
            && counter.enable().is_err()
        {
            calls = None;
        }
        Meter {
            processor: processor_time(),
            allocations: allocations(),
            calls,
        }
    }

    /// What it took so far.
    pub fn usage(&mut self) -> Usage {
        let calls = self.calls.as_mut().and_then(|counter| counter.read().ok());
        Usage {
            processor: processor_time() - self.processor,
            allocations: (allocations() - self.allocations) as u64,
            transfers: 0,
            // What reads the counter is a call itself.
            calls: calls.map(|calls| calls.saturating_sub(1)),
        }
    }
}

/// Counts this thread's system calls by the kernel's own tracepoint, which wants root.
fn call_counter() -> io::Result<Counter> {
    let id = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"]
        .iter()
        .find_map(|dir| fs::read_to_string(format!("{dir}/events/raw_syscalls/sys_enter/id")).ok());
    let id = id.and_then(|text| text.trim().parse().ok());
    let id = id.ok_or_else(|| io::Error::other("no tracepoint for system calls"))?;
    Builder::new(Tracepoint::with_id(id))
        .include_kernel()
        .build()
}

fn processor_time() -> Duration {
    // SAFETY: all bytes zero is a valid rusage, and the kernel fills it.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &mut usage);
        usage
    };
    let time = |t: libc::timeval| Duration::new(t.tv_sec as u64, t.tv_usec as u32 * 1000);
    time(usage.ru_utime) + time(usage.ru_stime)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn system_calls_are_counted_where_the_kernel_lets_us() {
        let mut meter = Meter::start(true);
        for _ in 0..100 {
            // SAFETY: has no preconditions.
            unsafe { libc::getppid() };
        }
        if let Some(calls) = meter.usage().calls {
            assert!((100..110).contains(&calls), "{calls}");
        }
        assert!(Meter::start(false).usage().calls.is_none());
    }
}
