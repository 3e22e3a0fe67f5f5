//! What the device's thread sleeps on.

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::time::{Duration, Instant};

use vmm_sys_util::epoll::{ControlOperation, Epoll, EpollEvent, EventSet};

/// Descriptors that wake the device's thread, each with a token.
///
/// Event descriptors are watched for their edges: each signal wakes once, and they need not be read.
pub(super) struct Waiter {
    epoll: Epoll,
}

/// Why the thread woke.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Token {
    /// A message to the thread.
    Message,
    /// The fabric has work.
    Fabric,
    /// The driver notified a virtqueue.
    Queue(u16),
    /// A doorbell page was written to.
    Doorbell(u32),
}

const KIND_SHIFT: u32 = 32;

impl Token {
    fn encode(self) -> u64 {
        let (kind, value) = match self {
            Token::Message => (0_u64, 0),
            Token::Fabric => (1, 0),
            Token::Queue(index) => (2, u32::from(index)),
            Token::Doorbell(page) => (3, page),
        };
        kind << KIND_SHIFT | u64::from(value)
    }

    fn decode(data: u64) -> Self {
        let value = data as u32;
        match data >> KIND_SHIFT {
            0 => Token::Message,
            1 => Token::Fabric,
            2 => Token::Queue(value as u16),
            _ => Token::Doorbell(value),
        }
    }
}

/// Tokens taken at once; more wait for the next call.
const BATCH: usize = 64;

impl Waiter {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Waiter {
            epoll: Epoll::new()?,
        })
    }

    /// Wakes whenever `fd`, an event descriptor, is signalled.
    pub(super) fn add_event(&self, fd: &impl AsRawFd, token: Token) -> io::Result<()> {
        let events = EventSet::IN | EventSet::EDGE_TRIGGERED;
        self.add(fd.as_raw_fd(), events, token)
    }

    /// Wakes as long as `fd` is readable.
    pub(super) fn add_level(&self, fd: RawFd, token: Token) -> io::Result<()> {
        self.add(fd, EventSet::IN, token)
    }

    fn add(&self, fd: RawFd, events: EventSet, token: Token) -> io::Result<()> {
        let event = EpollEvent::new(events, token.encode());
        self.epoll.ctl(ControlOperation::Add, fd, event)
    }

    /// Watches `fd` no more.
    pub(super) fn remove(&self, fd: &impl AsRawFd) {
        // Fails only when it is not watched.
        let _ = self.epoll.ctl(
            ControlOperation::Delete,
            fd.as_raw_fd(),
            EpollEvent::default(),
        );
    }

    /// Sleeps until something happens or `until`; for ever without. Puts the reasons into `tokens`, which may be none.
    pub(super) fn wait(&self, until: Option<Instant>, tokens: &mut Vec<Token>) {
        let left = until.map(|at| at.saturating_duration_since(Instant::now()));
        self.wait_for(left, tokens);
    }

    /// Collects what has happened, without sleeping.
    pub(super) fn check(&self, tokens: &mut Vec<Token>) {
        self.wait_for(Some(Duration::ZERO), tokens);
    }

    fn wait_for(&self, left: Option<Duration>, tokens: &mut Vec<Token>) {
        tokens.clear();
        // `EpollEvent` is a `repr(transparent)` wrapper of this type that cannot be given to the system call below.
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; BATCH];
        let mut count = self.pwait(left, &mut events);
        if count < 0 && io::Error::last_os_error().raw_os_error() == Some(libc::ENOSYS) {
            // Linux before 5.11: whole milliseconds, rounded up so that a timer has run out when the thread wakes for it.
            let timeout = left.map_or(-1, |left| {
                i32::try_from(left.as_nanos().div_ceil(1_000_000)).unwrap_or(i32::MAX)
            });
            // SAFETY: the descriptor is open as long as `self.epoll`, and `events` has room for BATCH elements.
            count = unsafe {
                libc::epoll_wait(
                    self.epoll.as_raw_fd(),
                    events.as_mut_ptr(),
                    BATCH as i32,
                    timeout,
                )
            }
            .into();
        }
        // An error is EINTR: nothing has happened, and the caller looks at everything anyway.
        let count = usize::try_from(count).unwrap_or(0).min(BATCH);
        tokens.extend(events[..count].iter().map(|e| Token::decode(e.u64)));
    }

    /// `epoll_pwait2`: RNR timers are as short as 10 us.
    fn pwait(&self, left: Option<Duration>, events: &mut [libc::epoll_event; BATCH]) -> i64 {
        let time = left.map(|left| libc::timespec {
            tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: left.subsec_nanos().into(),
        });
        let time = time.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        // SAFETY: the descriptor is open as long as `self.epoll`, `events` has room for BATCH elements, `time` is null or points to a
        // value that lives through the call, and no signal mask is given.
        unsafe {
            libc::syscall(
                libc::SYS_epoll_pwait2,
                self.epoll.as_raw_fd(),
                events.as_mut_ptr(),
                BATCH,
                time,
                std::ptr::null::<libc::sigset_t>(),
                0_usize,
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vmm_sys_util::eventfd::EventFd;

    #[test]
    fn each_signal_wakes_once_with_its_token() {
        let waiter = Waiter::new().unwrap();
        let (a, b) = (EventFd::new(0).unwrap(), EventFd::new(0).unwrap());
        waiter.add_event(&a, Token::Doorbell(1023)).unwrap();
        waiter.add_event(&b, Token::Queue(7)).unwrap();
        let mut tokens = Vec::new();
        a.write(1).unwrap();
        waiter.wait(None, &mut tokens);
        assert_eq!(tokens, [Token::Doorbell(1023)]);
        waiter.check(&mut tokens);
        assert!(tokens.is_empty());
        a.write(1).unwrap();
        b.write(1).unwrap();
        waiter.remove(&a);
        waiter.wait(None, &mut tokens);
        assert_eq!(tokens, [Token::Queue(7)]);
    }

    #[test]
    fn a_time_that_has_come_does_not_sleep_and_one_that_comes_wakes() {
        let waiter = Waiter::new().unwrap();
        let mut tokens = Vec::new();
        let start = Instant::now();
        waiter.wait(Some(start), &mut tokens);
        waiter.wait(Some(start + Duration::from_micros(300)), &mut tokens);
        assert!(start.elapsed() >= Duration::from_micros(300));
        assert!(tokens.is_empty());
    }
}
