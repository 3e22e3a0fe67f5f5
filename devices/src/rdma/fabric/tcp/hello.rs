//! HELLO: the first frame of a link (`docs/fabric.md`, section 1).

use crate::rdma::fabric::frame::{FrameHeader, HEADER_LEN, MAX_PAYLOAD, kind};

const MAGIC: [u8; 4] = *b"LARM";
/// The protocol version that we speak, and the lowest.
const VERSION: u16 = 1;
const LOWEST: u16 = 1;
/// Least bytes of the payload; what follows is as the features say.
pub(super) const LEN: u32 = 32;
/// Feature: the payload goes on with lanes.
const LANES: u32 = 1;
/// Bytes of our payload.
const OUR_LEN: u32 = LEN + 8;
/// Bytes of our frame.
pub(super) const FRAME_LEN: usize = HEADER_LEN + OUR_LEN as usize;
/// Longest payload of a HELLO that is read.
pub(super) const MAX_LEN: u32 = 1024;

/// What a peer says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hello {
    pub(super) version: u16,
    pub(super) lowest: u16,
    pub(super) instance: [u8; 16],
    pub(super) max_frame: u32,
    /// Connections that it would have in a link, at least 1.
    pub(super) lanes: u8,
    /// Which of them this one is; more than 0 only from who dials.
    pub(super) lane: u8,
    /// The number that who dials gave to the link.
    pub(super) link: u32,
}

impl Hello {
    /// One of a link that has a single lane.
    pub(super) fn new(instance: [u8; 16], max_frame: u32) -> Self {
        Hello {
            version: VERSION,
            lowest: LOWEST,
            instance,
            max_frame,
            lanes: 1,
            lane: 0,
            link: 0,
        }
    }

    pub(super) fn encode(&self) -> [u8; FRAME_LEN] {
        let mut out = [0; FRAME_LEN];
        let header = FrameHeader {
            kind: kind::HELLO,
            length: OUR_LEN,
            ..FrameHeader::default()
        };
        out[..HEADER_LEN].copy_from_slice(&header.encode());
        let body = &mut out[HEADER_LEN..];
        body[0..4].copy_from_slice(&MAGIC);
        body[4..6].copy_from_slice(&self.version.to_le_bytes());
        body[6..8].copy_from_slice(&self.lowest.to_le_bytes());
        body[8..24].copy_from_slice(&self.instance);
        body[24..28].copy_from_slice(&self.max_frame.to_le_bytes());
        body[28..32].copy_from_slice(&LANES.to_le_bytes());
        (body[32], body[33]) = (self.lanes, self.lane);
        body[36..40].copy_from_slice(&self.link.to_le_bytes());
        out
    }

    /// Reads and checks a payload; the error says what is wrong with it.
    pub(super) fn decode(payload: &[u8]) -> Result<Self, String> {
        let Some(body) = payload.first_chunk::<{ LEN as usize }>() else {
            return Err(format!(
                "HELLO of {} bytes, at least {LEN} wanted",
                payload.len()
            ));
        };
        let le16 = |at: usize| u16::from_le_bytes([body[at], body[at + 1]]);
        if body[..4] != MAGIC {
            return Err(format!("HELLO begins with {:02x?}, not LARM", &body[..4]));
        }
        let le32 =
            |at: usize| u32::from_le_bytes([body[at], body[at + 1], body[at + 2], body[at + 3]]);
        let (mut lanes, mut lane, mut link) = (1, 0, 0);
        if le32(28) & LANES != 0 {
            let Some(more) = payload[LEN as usize..].first_chunk::<8>() else {
                return Err(format!(
                    "HELLO of {} bytes without its lanes",
                    payload.len()
                ));
            };
            (lanes, lane) = (more[0], more[1]);
            link = u32::from_le_bytes([more[4], more[5], more[6], more[7]]);
            if lane >= lanes {
                return Err(format!("HELLO of lane {lane} of {lanes}"));
            }
        }
        let mut instance = [0; 16];
        instance.copy_from_slice(&body[8..24]);
        let hello = Hello {
            version: le16(4),
            lowest: le16(6),
            instance,
            max_frame: le32(24),
            lanes,
            lane,
            link,
        };
        if hello.lowest > hello.version {
            return Err(format!(
                "HELLO with version {} below its lowest, {}",
                hello.version, hello.lowest
            ));
        }
        if hello.version.min(VERSION) < hello.lowest.max(LOWEST) {
            return Err(format!(
                "peer speaks versions {} to {} of the protocol, we speak {LOWEST} to {VERSION}",
                hello.lowest, hello.version
            ));
        }
        if hello.max_frame < MAX_PAYLOAD {
            return Err(format!(
                "HELLO with max_frame {}, at least {MAX_PAYLOAD} wanted",
                hello.max_frame
            ));
        }
        Ok(hello)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body(change: impl FnOnce(&mut Hello)) -> Vec<u8> {
        let mut hello = Hello::new([7; 16], 100_000);
        change(&mut hello);
        hello.encode()[HEADER_LEN..].to_vec()
    }

    #[test]
    fn ours_is_understood_with_whatever_follows() {
        let mut bytes = body(|_| ());
        bytes.extend([1, 2, 3]);
        assert_eq!(Hello::decode(&bytes), Ok(Hello::new([7; 16], 100_000)));
    }

    #[test]
    fn lanes_are_read_where_the_features_have_them() {
        let bytes = body(|hello| (hello.lanes, hello.lane, hello.link) = (4, 3, 0x1234_5678));
        let hello = Hello::decode(&bytes).unwrap();
        assert_eq!((hello.lanes, hello.lane, hello.link), (4, 3, 0x1234_5678));
        // As monitors without lanes say it, whatever follows.
        let mut old = bytes.clone();
        old[28] = 0;
        for old in [&old[..], &old[..32]] {
            let hello = Hello::decode(old).unwrap();
            assert_eq!((hello.lanes, hello.lane, hello.link), (1, 0, 0));
        }
        assert!(
            Hello::decode(&bytes[..39])
                .unwrap_err()
                .contains("39 bytes")
        );
        for lanes in [0, 3] {
            let wrong = body(|hello| (hello.lanes, hello.lane) = (lanes, 3));
            assert!(Hello::decode(&wrong).unwrap_err().contains("lane 3"));
        }
    }

    #[test]
    fn a_newer_peer_that_speaks_our_version_is_taken() {
        assert!(Hello::decode(&body(|hello| hello.version = 9)).is_ok());
    }

    #[test]
    fn what_is_wrong_is_said() {
        let error = |bytes: &[u8]| Hello::decode(bytes).unwrap_err();
        assert!(error(&body(|_| ())[..31]).contains("31 bytes"));
        assert!(error(b"GET / HTTP/1.1\r\nHost: example\r\n\r\n").contains("not LARM"));
        let newer = body(|hello| {
            hello.version = 9;
            hello.lowest = 2;
        });
        assert!(error(&newer).contains("versions 2 to 9"));
        let older = body(|hello| {
            hello.version = 0;
            hello.lowest = 0;
        });
        assert!(error(&older).contains("versions 0 to 0"));
        assert!(error(&body(|hello| hello.lowest = 5)).contains("below its lowest"));
        assert!(error(&body(|hello| hello.max_frame = 65_535)).contains("65535"));
    }
}
