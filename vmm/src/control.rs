//! The control socket: HTTP/1.1 over a Unix socket, one request per connection, bodies small (`api/openapi.yaml`).

use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use api::control::Problem;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::machine::Machine;
use crate::outcome::Outcome;

const STACK: usize = 256 << 10;
/// Longest request: a line and a few headers.
const MAX_REQUEST: usize = 4 << 10;
/// Longest answer that a client takes.
const MAX_ANSWER: u64 = 16 << 20;
const MAX_HEADERS: usize = 16;
/// How long one side waits for the other.
const PATIENCE: Duration = Duration::from_secs(10);

/// Why a request did not succeed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The socket cannot be reached.
    #[error("--control {}: {source}; is the machine running, and was it started with this --control?", path.display())]
    Connect {
        /// The socket.
        path: PathBuf,
        /// What is wrong.
        source: io::Error,
    },
    /// The connection broke.
    #[error("--control {}: {source}", path.display())]
    Io {
        /// The socket.
        path: PathBuf,
        /// What is wrong.
        source: io::Error,
    },
    /// What came back is no answer of ours.
    #[error("--control {}: not an answer of a Longarm control socket", path.display())]
    Garbled {
        /// The socket.
        path: PathBuf,
    },
    /// The machine refused.
    #[error("{0}")]
    Refused(String),
}

/// The server's socket, removed when dropped.
pub struct Server {
    path: PathBuf,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

impl Server {
    /// Serves `machine` on a socket at `path`, which only our own user may use. A socket left behind by a process that is gone
    /// is replaced.
    ///
    /// # Errors
    /// When the socket cannot be made, or another machine answers on it.
    pub fn start(path: &Path, machine: Arc<Machine>) -> io::Result<Self> {
        let listener = listen_alone(path)?;
        let server = Self { path: path.into() };
        thread::Builder::new()
            .name("control".into())
            .stack_size(STACK)
            .spawn(move || {
                for stream in listener.incoming() {
                    let served = stream.and_then(|mut stream| serve(&mut stream, &machine));
                    if let Err(e) = served {
                        log::debug!("control socket: {e}");
                    }
                }
            })?;
        Ok(server)
    }
}

/// Listens on a socket that is made for our own user alone, so that there is no moment in which others could reach it. No other
/// thread makes files at this time: the machine does not run yet.
fn listen_alone(path: &Path) -> io::Result<UnixListener> {
    // SAFETY: changes a number of the process, touches no memory.
    let before = unsafe { libc::umask(0o177) };
    let listener = listen(path);
    // SAFETY: as above.
    unsafe { libc::umask(before) };
    listener
}

fn listen(path: &Path) -> io::Result<UnixListener> {
    match UnixListener::bind(path) {
        Err(e) if e.kind() == io::ErrorKind::AddrInUse => {
            if UnixStream::connect(path).is_ok() {
                return Err(io::Error::new(
                    io::ErrorKind::AddrInUse,
                    "another machine answers there",
                ));
            }
            fs::remove_file(path)?;
            UnixListener::bind(path)
        }
        other => other,
    }
}

/// Status, reason and JSON body of an answer.
struct Answer {
    status: u16,
    reason: &'static str,
    body: Vec<u8>,
}

impl Answer {
    fn ok(value: &impl Serialize) -> Self {
        match serde_json::to_vec(value) {
            Ok(body) => Self {
                status: 200,
                reason: "OK",
                body,
            },
            Err(e) => Self::problem(500, "Internal Server Error", &e.to_string()),
        }
    }

    fn done() -> Self {
        Self {
            status: 204,
            reason: "No Content",
            body: Vec::new(),
        }
    }

    fn problem(status: u16, reason: &'static str, error: &str) -> Self {
        let problem = Problem {
            error: error.into(),
        };
        Self {
            status,
            reason,
            body: serde_json::to_vec(&problem).unwrap_or_default(),
        }
    }
}

fn serve(stream: &mut UnixStream, machine: &Machine) -> io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let answer = match read_request(stream)? {
        Some((method, path)) => answer(machine, &method, &path),
        None => Answer::problem(400, "Bad Request", "not an HTTP request, or one too long"),
    };
    let head = format!(
        "HTTP/1.1 {} {}\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        answer.status,
        answer.reason,
        answer.body.len()
    );
    stream.write_all(head.as_bytes())?;
    stream.write_all(&answer.body)
}

/// Method and path of a request, or `None` when it is not one that we take.
fn read_request(stream: &mut UnixStream) -> io::Result<Option<(String, String)>> {
    let mut buffer = [0; MAX_REQUEST];
    let mut len = 0;
    loop {
        let n = stream.read(&mut buffer[len..])?;
        len += n;
        let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
        let mut request = httparse::Request::new(&mut headers);
        match request.parse(&buffer[..len]) {
            Ok(httparse::Status::Complete(_)) => {
                return Ok(request
                    .method
                    .zip(request.path)
                    .map(|(m, p)| (m.into(), p.into())));
            }
            Ok(httparse::Status::Partial) if n != 0 && len < buffer.len() => {}
            _ => return Ok(None),
        }
    }
}

fn answer(machine: &Machine, method: &str, path: &str) -> Answer {
    match (method, path) {
        ("GET", "/vm") => Answer::ok(&machine.info()),
        ("GET", "/stats") => Answer::ok(&machine.stats()),
        ("PUT", "/vm/pause") => {
            machine.pause();
            Answer::done()
        }
        ("PUT", "/vm/resume") => {
            machine.resume();
            Answer::done()
        }
        ("PUT", "/vm/stop") => {
            machine.outcome().report(Outcome::PowerOff);
            Answer::done()
        }
        (_, "/vm" | "/stats" | "/vm/pause" | "/vm/resume" | "/vm/stop") => {
            Answer::problem(405, "Method Not Allowed", "see api/openapi.yaml")
        }
        _ => Answer::problem(404, "Not Found", "see api/openapi.yaml"),
    }
}

/// Sends a request to the machine that serves `path`, and returns the answer's body.
pub fn request(path: &Path, method: &str, target: &str) -> Result<Vec<u8>, ClientError> {
    let io = |source| ClientError::Io {
        path: path.into(),
        source,
    };
    let garbled = || ClientError::Garbled { path: path.into() };
    let mut stream = UnixStream::connect(path).map_err(|source| ClientError::Connect {
        path: path.into(),
        source,
    })?;
    stream.set_read_timeout(Some(PATIENCE)).map_err(io)?;
    stream.set_write_timeout(Some(PATIENCE)).map_err(io)?;
    write!(
        stream,
        "{method} {target} HTTP/1.1\r\nHost: longarm\r\nConnection: close\r\n\r\n"
    )
    .map_err(io)?;
    let mut data = Vec::new();
    stream.take(MAX_ANSWER).read_to_end(&mut data).map_err(io)?;
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut response = httparse::Response::new(&mut headers);
    let Ok(httparse::Status::Complete(head)) = response.parse(&data) else {
        return Err(garbled());
    };
    let status = response.code.ok_or_else(garbled)?;
    let body = data.split_off(head);
    if (200..300).contains(&status) {
        return Ok(body);
    }
    let problem: Problem = serde_json::from_slice(&body).map_err(|_| garbled())?;
    Err(ClientError::Refused(problem.error))
}

/// A request whose answer is a `T`.
pub fn get<T: DeserializeOwned>(path: &Path, target: &str) -> Result<T, ClientError> {
    let body = request(path, "GET", target)?;
    serde_json::from_slice(&body).map_err(|_| ClientError::Garbled { path: path.into() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn ask(text: &[u8]) -> Option<(String, String)> {
        let (mut ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.write_all(text).unwrap();
        theirs.shutdown(std::net::Shutdown::Write).unwrap();
        read_request(&mut ours).unwrap()
    }

    #[test]
    fn requests_are_read_whole_or_refused() {
        let whole = ask(b"PUT /vm/pause HTTP/1.1\r\nHost: x\r\n\r\n");
        assert_eq!(whole, Some(("PUT".into(), "/vm/pause".into())));
        for text in [
            &b""[..],
            b"PUT /vm",
            b"\0\0\0\0\r\n\r\n",
            b"GET / HTTP/9.9\r\n\r\n",
        ] {
            assert_eq!(ask(text), None);
        }
        let mut long = b"GET / HTTP/1.1\r\nA: ".to_vec();
        long.resize(MAX_REQUEST + 10, b'a');
        assert_eq!(ask(&long), None);
        let mut many = b"GET / HTTP/1.1\r\n".to_vec();
        for _ in 0..=MAX_HEADERS {
            many.extend(b"A: b\r\n");
        }
        many.extend(b"\r\n");
        assert_eq!(ask(&many), None);
    }

    #[test]
    fn the_socket_is_ours_alone_and_a_stale_one_is_replaced() {
        let path = std::env::temp_dir().join(format!("longarm-control-{}", std::process::id()));
        let first = listen_alone(&path).unwrap();
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(
            listen(&path).unwrap_err().kind(),
            io::ErrorKind::AddrInUse,
            "somebody answers there"
        );
        drop(first);
        listen(&path).unwrap();
        fs::remove_file(path).unwrap();
    }
}
