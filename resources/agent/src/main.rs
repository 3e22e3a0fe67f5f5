//! `longarm-agent`: serves the host's requests in a guest. As process 1 it also reaps orphans.

use std::io;
use std::os::fd::OwnedFd;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use longarm_agent::vsock::Listener;
use longarm_agent::{PORT, session};

/// How long the vsock driver may take to appear.
const DRIVER_TRIES: u32 = 600;
const DRIVER_WAIT: Duration = Duration::from_millis(100);

fn main() -> ExitCode {
    if std::process::id() == 1 && !become_agent() {
        return ExitCode::FAILURE;
    }
    match listen() {
        Ok(listener) => serve(&listener),
        Err(e) => {
            eprintln!("longarm-agent: vsock port {PORT}: {e} (is the vsock driver loaded?)");
            ExitCode::FAILURE
        }
    }
}

/// As process 1: splits off a process for the agent, in which this returns true, and reaps whatever ends in this one, for ever.
fn become_agent() -> bool {
    loop {
        // SAFETY: the process has a single thread, so the new one may go on as if nothing had happened.
        let agent = unsafe { libc::fork() };
        if agent == 0 {
            return true;
        }
        if agent < 0 {
            eprintln!("longarm-agent: fork: {}", io::Error::last_os_error());
            return false;
        }
        // SAFETY: no status is asked for, so no pointer is given.
        while unsafe { libc::wait(std::ptr::null_mut()) } != agent {}
        eprintln!("longarm-agent: the agent ended, starting it again");
        thread::sleep(Duration::from_secs(1));
    }
}

fn listen() -> io::Result<Listener> {
    let mut result = Listener::bind(PORT);
    for _ in 0..DRIVER_TRIES {
        match &result {
            // No driver yet.
            Err(e)
                if matches!(
                    e.raw_os_error(),
                    Some(libc::EAFNOSUPPORT | libc::EADDRNOTAVAIL | libc::ENODEV)
                ) =>
            {
                thread::sleep(DRIVER_WAIT);
                result = Listener::bind(PORT);
            }
            _ => break,
        }
    }
    result
}

fn serve(listener: &Listener) -> ! {
    loop {
        match listener.accept() {
            Ok(socket) => start_session(socket),
            Err(e) => {
                eprintln!("longarm-agent: accept: {e}");
                thread::sleep(DRIVER_WAIT);
            }
        }
    }
}

fn start_session(socket: OwnedFd) {
    let run = move || {
        if let Err(e) = session::serve(socket, &power_off) {
            eprintln!("longarm-agent: session: {e}");
        }
    };
    if let Err(e) = thread::Builder::new().name("session".into()).spawn(run) {
        // The host sees its connection closed.
        eprintln!("longarm-agent: a session cannot be started: {e}");
    }
}

fn power_off() -> io::Error {
    // SAFETY: system calls without pointers.
    unsafe {
        libc::sync();
        libc::reboot(libc::RB_POWER_OFF);
    }
    io::Error::last_os_error()
}
