//! What the host knows about this process and its threads.

use std::sync::OnceLock;
use std::time::Duration;

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

/// Processor time of the whole process, user and system.
pub fn processor_time() -> Duration {
    // SAFETY: all bytes zero is a valid rusage, and the kernel fills it.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &mut usage);
        usage
    };
    let time = |t: libc::timeval| Duration::new(t.tv_sec as u64, t.tv_usec as u32 * 1000);
    time(usage.ru_utime) + time(usage.ru_stime)
}
