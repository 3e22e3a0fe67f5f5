//! The host's side against the guest's, over a Unix socket in place of vsock.

use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use longarm_agent::client::{Client, ClientError, Status};
use longarm_agent::protocol::{Kind, read_frame, write_frame};
use longarm_agent::session::{self, SessionError};

/// How long anything may take on a loaded machine.
const TIMEOUT: Duration = Duration::from_secs(60);

struct Agent {
    path: PathBuf,
    ends: mpsc::Receiver<Result<(), SessionError>>,
}

impl Agent {
    /// A monitor's vsock socket with an agent on every port behind it.
    fn new(name: &str) -> Self {
        let path =
            std::env::temp_dir().join(format!("longarm-agent-{}-{name}", std::process::id()));
        let listener = UnixListener::bind(&path).unwrap();
        let (tx, ends) = mpsc::channel();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (mut stream, tx) = (stream.unwrap(), tx.clone());
                std::thread::spawn(move || {
                    let mut line = [0; 13];
                    stream.read_exact(&mut line).unwrap();
                    assert_eq!(&line, b"CONNECT 1024\n");
                    stream.write_all(b"OK 7\n").unwrap();
                    let refuse = || io::Error::from_raw_os_error(1);
                    let _ = tx.send(session::serve(OwnedFd::from(stream), &refuse));
                });
            }
        });
        Self { path, ends }
    }
    fn client(&self) -> Client {
        Client::connect(&self.path, 1024, TIMEOUT).unwrap()
    }
    fn run(&self, command: &str, stdin: &[u8]) -> (Status, Vec<u8>, Vec<u8>) {
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let stdin: Box<dyn Read + Send> = Box::new(io::Cursor::new(stdin.to_vec()));
        let status = self
            .client()
            .run(command, Some(stdin), &mut out, &mut err)
            .unwrap();
        (status, out, err)
    }
    /// A session in bare frames, HELLO already read.
    fn bare(&self) -> UnixStream {
        let mut s = UnixStream::connect(&self.path).unwrap();
        s.set_read_timeout(Some(TIMEOUT)).unwrap();
        s.write_all(b"CONNECT 1024\n").unwrap();
        s.read_exact(&mut [0; 5]).unwrap();
        assert_eq!(read_frame(&mut s).unwrap().unwrap().kind, Kind::Hello);
        s
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

#[test]
fn streams_are_apart_and_the_status_is_the_commands_own() {
    let a = Agent::new("streams");
    let (status, out, err) = a.run("cat; echo oops >&2; exit 42", b"hello");
    assert_eq!(
        (status, out, err),
        (Status::Exited(42), b"hello".to_vec(), b"oops\n".to_vec())
    );
    assert_eq!(status.code(), 42);
    let (status, ..) = a.run("kill -TERM $$", b"");
    assert_eq!((status, status.code()), (Status::Signalled(15), 143));
    assert_eq!(a.run("no-such-command-here", b"").0, Status::Exited(127));
}

#[test]
fn without_input_the_command_reads_the_end() {
    let a = Agent::new("noinput");
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let status = a.client().run("wc -c", None, &mut out, &mut err).unwrap();
    assert_eq!((status, out.trim_ascii()), (Status::Exited(0), &b"0"[..]));
}

#[test]
fn much_data_goes_through_both_ways_whole() {
    let a = Agent::new("much");
    let data: Vec<u8> = (0..5_000_000u32)
        .map(|i| (i * 13 + i / 257) as u8)
        .collect();
    let (status, out, _) = a.run("cat", &data);
    assert_eq!(status, Status::Exited(0));
    assert!(out == data);
}

#[test]
fn input_that_comes_in_one_piece_with_its_end_is_passed_on_whole() {
    let agent = Agent::new("one-piece");
    let mut socket = agent.bare();
    let mut frames = Vec::new();
    // It says nothing before it has read all: no output of its own wakes the session.
    write_frame(&mut frames, Kind::Run, b"wc -c").unwrap();
    for piece in [&b"one "[..], b"two", b""] {
        write_frame(&mut frames, Kind::Stdin, piece).unwrap();
    }
    socket.write_all(&frames).unwrap();
    let mut output = Vec::new();
    let status = loop {
        let frame = read_frame(&mut socket).unwrap().unwrap();
        match frame.kind {
            Kind::Stdout => output.extend(frame.payload),
            _ => break frame,
        }
    };
    assert_eq!((status.kind, status.number()), (Kind::Exited, Some(0)));
    assert_eq!(output, b"7\n");
}

#[test]
fn input_that_the_command_does_not_read_is_no_obstacle() {
    let a = Agent::new("unread");
    let (status, out, _) = a.run("exec 0<&-; echo done", &[0; 1_000_000]);
    assert_eq!((status, out), (Status::Exited(0), b"done\n".to_vec()));
}

#[test]
fn background_processes_do_not_hold_the_session() {
    let a = Agent::new("background");
    let start = Instant::now();
    let (status, out, _) = a.run("sleep 1000 & echo $!; exit 3", b"");
    assert!(start.elapsed() < Duration::from_secs(1000));
    assert_eq!(status, Status::Exited(3));
    // Left over, as a service would be.
    let pid = String::from_utf8(out).unwrap().trim().to_string();
    let (status, ..) = a.run(&format!("kill {pid}"), b"");
    assert_eq!(status, Status::Exited(0));
}

#[test]
fn sessions_run_at_once() {
    let a = Agent::new("several");
    let dir = a.path.with_extension("there");
    std::fs::create_dir(&dir).unwrap();
    // Each waits, for a minute at most, until all are there.
    let there = format!("$(ls {} | wc -l)", dir.display());
    std::thread::scope(|s| {
        for n in 0..8 {
            let client = a.client();
            let own = dir.join(n.to_string());
            let wait = format!(
                "echo >{}; for i in $(seq 600); do [ {there} = 8 ] && break; sleep 0.1; done; echo {there}",
                own.display()
            );
            s.spawn(move || {
                let (mut out, mut err) = (Vec::new(), Vec::new());
                let status = client.run(&wait, None, &mut out, &mut err).unwrap();
                assert_eq!(status, Status::Exited(0));
                assert_eq!(out.trim_ascii(), b"8");
            });
        }
    });
    std::fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn hanging_up_kills_the_command_and_its_children() {
    let a = Agent::new("hangup");
    let mut s = a.bare();
    write_frame(&mut s, Kind::Run, b"sleep 100 & echo $!; wait").unwrap();
    let frame = read_frame(&mut s).unwrap().unwrap();
    let pid: u32 = String::from_utf8(frame.payload)
        .unwrap()
        .trim()
        .parse()
        .unwrap();
    let alive = |pid| {
        // An orphan that nobody reaps is dead too.
        std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|s| !s.contains(") Z "))
    };
    assert!(alive(pid));
    drop(s);
    assert!(matches!(
        a.ends.recv_timeout(TIMEOUT).unwrap(),
        Err(SessionError::HungUp)
    ));
    let end = Instant::now() + TIMEOUT;
    while alive(pid) {
        assert!(Instant::now() < end);
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn signals_reach_the_command() {
    let a = Agent::new("signal");
    let mut s = a.bare();
    write_frame(&mut s, Kind::Run, b"echo up; exec sleep 100").unwrap();
    read_frame(&mut s).unwrap();
    write_frame(&mut s, Kind::Signal, &2u32.to_le_bytes()).unwrap();
    let end = read_frame(&mut s).unwrap().unwrap();
    assert_eq!((end.kind, end.number()), (Kind::Signalled, Some(2)));
}

#[test]
fn what_is_no_request_ends_the_session() {
    let a = Agent::new("nonsense");
    let mut s = a.bare();
    write_frame(&mut s, Kind::Stdout, b"x").unwrap();
    assert!(matches!(
        a.ends.recv_timeout(TIMEOUT).unwrap(),
        Err(SessionError::Unexpected(Kind::Stdout))
    ));
    let mut s = a.bare();
    s.write_all(&[0xff; 64]).unwrap();
    assert!(matches!(
        a.ends.recv_timeout(TIMEOUT).unwrap(),
        Err(SessionError::Protocol(_))
    ));
    assert!(
        matches!(a.client().power_off(), Err(ClientError::Refused(text)) if text.contains("power-off"))
    );
}

#[test]
fn the_client_waits_for_the_agent_but_not_for_ever() {
    let path = std::env::temp_dir().join(format!("longarm-agent-{}-late", std::process::id()));
    let start = Instant::now();
    let error = Client::connect(&path, 1024, Duration::from_millis(300)).unwrap_err();
    assert!(error.to_string().contains("No such file"), "{error}");
    assert!(start.elapsed() < Duration::from_secs(5));
    // Accepted by the kernel and never answered, as before the guest's driver runs.
    let listener = UnixListener::bind(&path).unwrap();
    assert!(matches!(client_error(&path), ClientError::NoAgent { .. }));
    // Hung up on, as while nobody listens in the guest.
    std::thread::spawn(move || listener.incoming().for_each(drop));
    assert!(matches!(client_error(&path), ClientError::NoAgent { .. }));
    std::fs::remove_file(&path).unwrap();
    let late = path.clone();
    let agent = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(300));
        let name = late
            .file_name()
            .unwrap()
            .to_str()
            .unwrap()
            .rsplit('-')
            .next()
            .unwrap()
            .to_string();
        Agent::new(&name)
    });
    Client::connect(&path, 1024, TIMEOUT).unwrap();
    drop(agent.join().unwrap());
}

fn client_error(path: &Path) -> ClientError {
    Client::connect(path, 1024, Duration::from_millis(300)).unwrap_err()
}

#[test]
fn a_lost_agent_is_an_error_and_not_a_status() {
    let path = std::env::temp_dir().join(format!("longarm-agent-{}-lost", std::process::id()));
    let listener = UnixListener::bind(&path).unwrap();
    let agent = std::thread::spawn(move || {
        let (mut s, _) = listener.accept().unwrap();
        s.read_exact(&mut [0; 13]).unwrap();
        s.write_all(b"OK 7\n").unwrap();
        write_frame(&mut s, Kind::Hello, &1u32.to_le_bytes()).unwrap();
        write_frame(&mut s, Kind::Stdout, b"half").unwrap();
    });
    let client = Client::connect(&path, 1024, TIMEOUT).unwrap();
    // It is gone before anything is asked of it: what it said must still come through.
    agent.join().unwrap();
    let mut out = Vec::new();
    let error = client
        .run("true", None, &mut out, &mut io::sink())
        .unwrap_err();
    assert!(matches!(error, ClientError::Lost(_)));
    assert_eq!(out, b"half");
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn output_that_cannot_be_passed_on_is_an_error() {
    let a = Agent::new("broken");
    let error = a
        .client()
        .run("echo x; sleep 100", None, &mut Broken, &mut io::sink())
        .unwrap_err();
    assert!(matches!(error, ClientError::Output(_)));
}

struct Broken;
impl Write for Broken {
    fn write(&mut self, _: &[u8]) -> io::Result<usize> {
        Err(io::ErrorKind::BrokenPipe.into())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
