//! The frames of a session, version 1.
//!
//! A frame is a byte that says its kind, the length of its payload (le32, at most [`MAX_PAYLOAD`]), and the payload.
//!
//! | kind | name | direction | payload |
//! | --- | --- | --- | --- |
//! | 0x01 | RUN | to the guest | a command line, for `/bin/sh -c` |
//! | 0x02 | POWER_OFF | to the guest | none |
//! | 0x03 | STDIN | to the guest | bytes; none at all means end of file |
//! | 0x04 | SIGNAL | to the guest | le32 signal number, for the command's process group |
//! | 0x80 | HELLO | to the host | le32 version |
//! | 0x81 | STDOUT | to the host | bytes |
//! | 0x82 | STDERR | to the host | bytes |
//! | 0x83 | EXITED | to the host | le32 exit status |
//! | 0x84 | SIGNALLED | to the host | le32 signal that ended the command |
//! | 0x85 | FAILED | to the host | text: why the request was not carried out |
//!
//! The agent begins with HELLO. The host answers with RUN or POWER_OFF, and after RUN with STDIN and SIGNAL as it likes. EXITED,
//! SIGNALLED or FAILED ends the session. A host that hangs up before that kills the command's process group.

use std::io::{self, Read, Write};

/// The version that HELLO tells.
pub const VERSION: u32 = 1;
/// Most bytes in a payload.
pub const MAX_PAYLOAD: usize = 256 << 10;
/// Bytes before a payload.
pub const HEADER: usize = 5;

/// What a frame is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// Run a command.
    Run = 0x01,
    /// Switch the guest off.
    PowerOff = 0x02,
    /// Standard input of the command.
    Stdin = 0x03,
    /// Send a signal to the command.
    Signal = 0x04,
    /// The agent is there.
    Hello = 0x80,
    /// Standard output of the command.
    Stdout = 0x81,
    /// Standard error of the command.
    Stderr = 0x82,
    /// The command exited.
    Exited = 0x83,
    /// A signal ended the command.
    Signalled = 0x84,
    /// The request was not carried out.
    Failed = 0x85,
}

impl Kind {
    fn from_byte(byte: u8) -> Option<Self> {
        const ALL: [Kind; 10] = [
            Kind::Run,
            Kind::PowerOff,
            Kind::Stdin,
            Kind::Signal,
            Kind::Hello,
            Kind::Stdout,
            Kind::Stderr,
            Kind::Exited,
            Kind::Signalled,
            Kind::Failed,
        ];
        ALL.into_iter().find(|kind| *kind as u8 == byte)
    }
}

/// A frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// What it is.
    pub kind: Kind,
    /// Its payload.
    pub payload: Vec<u8>,
}

impl Frame {
    /// The payload as a le32, if it is one.
    pub fn number(&self) -> Option<u32> {
        Some(u32::from_le_bytes(self.payload.as_slice().try_into().ok()?))
    }
}

/// The other side does not keep to the protocol.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    /// A kind that does not exist.
    #[error("frame of unknown kind {0:#04x}")]
    Kind(u8),
    /// A payload that is too long.
    #[error("frame of {0} bytes, at most {MAX_PAYLOAD} are allowed")]
    Length(usize),
}

/// Writes one frame.
///
/// # Errors
/// `InvalidInput` when the payload is longer than [`MAX_PAYLOAD`], and what `to` returns.
pub fn write_frame(to: &mut impl Write, kind: Kind, payload: &[u8]) -> io::Result<()> {
    if payload.len() > MAX_PAYLOAD {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            ProtocolError::Length(payload.len()),
        ));
    }
    let mut frame = Vec::with_capacity(HEADER + payload.len());
    frame.push(kind as u8);
    frame.extend((payload.len() as u32).to_le_bytes());
    frame.extend(payload);
    to.write_all(&frame)
}

/// Reads one frame; `None` when the stream ends before one begins.
pub fn read_frame(from: &mut impl Read) -> io::Result<Option<Frame>> {
    let mut decoder = Decoder::default();
    let mut buffer = [0; HEADER];
    loop {
        let invalid = |e| io::Error::new(io::ErrorKind::InvalidData, e);
        if let Some(frame) = decoder.next_frame().map_err(invalid)? {
            return Ok(Some(frame));
        }
        let missing = decoder.missing();
        let chunk = if missing <= HEADER {
            &mut buffer[..missing]
        } else {
            decoder.bytes.resize(decoder.bytes.len() + missing, 0);
            let start = decoder.bytes.len() - missing;
            from.read_exact(&mut decoder.bytes[start..])?;
            continue;
        };
        match from.read(chunk) {
            Ok(0) if decoder.bytes.is_empty() => return Ok(None),
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(n) => decoder.bytes.extend(&chunk[..n]),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
}

/// Makes frames of bytes that come in pieces of any size.
#[derive(Debug, Default)]
pub struct Decoder {
    bytes: Vec<u8>,
}

impl Decoder {
    /// Adds bytes as they came.
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend(bytes);
    }

    /// Takes the next whole frame.
    pub fn next_frame(&mut self) -> Result<Option<Frame>, ProtocolError> {
        let Some(len) = self.payload_len()? else {
            return Ok(None);
        };
        let Some(kind) = Kind::from_byte(self.bytes[0]) else {
            return Err(ProtocolError::Kind(self.bytes[0]));
        };
        if self.bytes.len() < HEADER + len {
            return Ok(None);
        }
        let payload = self.bytes[HEADER..HEADER + len].to_vec();
        self.bytes.drain(..HEADER + len);
        Ok(Some(Frame { kind, payload }))
    }

    fn payload_len(&self) -> Result<Option<usize>, ProtocolError> {
        let Some(&[_, a, b, c, d]) = self.bytes.first_chunk() else {
            return Ok(None);
        };
        let len = u32::from_le_bytes([a, b, c, d]) as usize;
        if len > MAX_PAYLOAD {
            Err(ProtocolError::Length(len))
        } else {
            Ok(Some(len))
        }
    }

    /// Bytes that are missing until something more can be said.
    fn missing(&self) -> usize {
        match self.payload_len() {
            Ok(Some(len)) => (HEADER + len).saturating_sub(self.bytes.len()),
            _ => HEADER.saturating_sub(self.bytes.len()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_survive_any_cutting() {
        let mut wire = Vec::new();
        write_frame(&mut wire, Kind::Run, b"echo hi").unwrap();
        write_frame(&mut wire, Kind::Stdin, b"").unwrap();
        write_frame(&mut wire, Kind::Exited, &7u32.to_le_bytes()).unwrap();
        for size in 1..wire.len() {
            let mut decoder = Decoder::default();
            let mut frames = Vec::new();
            for piece in wire.chunks(size) {
                decoder.push(piece);
                while let Some(frame) = decoder.next_frame().unwrap() {
                    frames.push(frame);
                }
            }
            assert_eq!(frames.len(), 3);
            assert_eq!(
                frames[0],
                Frame {
                    kind: Kind::Run,
                    payload: b"echo hi".to_vec()
                }
            );
            assert_eq!((frames[1].payload.len(), frames[1].number()), (0, None));
            assert_eq!(frames[2].number(), Some(7));
        }
    }

    #[test]
    fn a_stream_is_read_frame_by_frame() {
        let mut wire = Vec::new();
        write_frame(&mut wire, Kind::Stdout, &[7; 100_000]).unwrap();
        write_frame(&mut wire, Kind::Hello, &[]).unwrap();
        let mut from = &wire[..];
        assert_eq!(
            read_frame(&mut from).unwrap().unwrap().payload,
            [7; 100_000]
        );
        assert_eq!(read_frame(&mut from).unwrap().unwrap().kind, Kind::Hello);
        assert_eq!(read_frame(&mut from).unwrap(), None);
        assert_eq!(
            read_frame(&mut &wire[..3]).unwrap_err().kind(),
            io::ErrorKind::UnexpectedEof
        );
        assert_eq!(
            read_frame(&mut &wire[..30]).unwrap_err().kind(),
            io::ErrorKind::UnexpectedEof
        );
    }

    #[test]
    fn nonsense_is_refused_at_its_header() {
        let mut decoder = Decoder::default();
        decoder.push(&[0x55, 0, 0, 0, 0]);
        assert_eq!(decoder.next_frame(), Err(ProtocolError::Kind(0x55)));
        let mut decoder = Decoder::default();
        decoder.push(&[1, 1, 0, 4, 0]);
        assert_eq!(
            decoder.next_frame(),
            Err(ProtocolError::Length(MAX_PAYLOAD + 1))
        );
        assert!(write_frame(&mut Vec::new(), Kind::Run, &vec![0; MAX_PAYLOAD + 1]).is_err());
        assert!(read_frame(&mut &[9u8; 5][..]).is_err());
    }
}
