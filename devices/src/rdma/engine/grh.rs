//! The 40 bytes before a datagram's data: what a RoCE v2 packet's network header would have been (InfiniBand, annex A17).
//!
//! Between IPv6 GIDs that is the IPv6 header, which is laid out as a GRH is. Between IPv4 addresses the IPv4 header lies in the last 20 bytes,
//! with a checksum, which is how the receiving kernel tells one from the other.

use crate::rdma::fabric::Gid;
use crate::rdma::fabric::frame::GRH_LEN;
use crate::rdma::wire::DatagramAddress;

const LEN: usize = GRH_LEN as usize;
/// An IPv4 address as a GID.
const MAPPED: [u8; 12] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];
/// Where the IPv4 header begins, and its length.
const IPV4: usize = 20;
/// UDP, base transport and datagram headers, and the ICRC: what lies around the data in a packet.
const AROUND: u32 = 8 + 12 + 8 + 4;
/// The header that immediate data has.
const IMMEDIATE: u32 = 4;
const PROTOCOL_UDP: u8 = 17;
const DONT_FRAGMENT: u8 = 0x40;

/// The header of a datagram of `length` bytes, with immediate data or without, from a GID to an address.
pub(super) fn build(sgid: &Gid, to: &DatagramAddress, length: u32, immediate: bool) -> [u8; LEN] {
    let mut grh = [0; LEN];
    let around = if immediate {
        AROUND + IMMEDIATE
    } else {
        AROUND
    };
    // Data goes out in words.
    let payload = around + length.next_multiple_of(4);
    if to.dgid.starts_with(&MAPPED) && sgid.starts_with(&MAPPED) {
        let ip = &mut grh[IPV4..];
        ip[0] = 0x45;
        ip[1] = to.traffic_class;
        ip[2..4].copy_from_slice(&((IPV4 as u32 + payload) as u16).to_be_bytes());
        ip[6] = DONT_FRAGMENT;
        ip[8] = to.hop_limit;
        ip[9] = PROTOCOL_UDP;
        ip[12..16].copy_from_slice(&sgid[12..]);
        ip[16..20].copy_from_slice(&to.dgid[12..]);
        let sum = checksum(ip);
        ip[10..12].copy_from_slice(&sum.to_be_bytes());
    } else {
        let flow = to.flow_label.get() & 0xf_ffff;
        let first = 6 << 28 | u32::from(to.traffic_class) << 20 | flow;
        grh[0..4].copy_from_slice(&first.to_be_bytes());
        grh[4..6].copy_from_slice(&(payload as u16).to_be_bytes());
        grh[6] = PROTOCOL_UDP;
        grh[7] = to.hop_limit;
        grh[8..24].copy_from_slice(sgid);
        grh[24..40].copy_from_slice(&to.dgid);
    }
    grh
}

/// The GID that a datagram is for; None for a header that makes no sense.
pub(super) fn destination(grh: &[u8; LEN]) -> Option<Gid> {
    let mut gid = [0; 16];
    match (grh[0] >> 4, grh[IPV4]) {
        (6, _) => gid.copy_from_slice(&grh[24..]),
        (0, 0x45) if checksum(&grh[IPV4..]) == 0 => {
            gid[..12].copy_from_slice(&MAPPED);
            gid[12..].copy_from_slice(&grh[36..]);
        }
        _ => return None,
    }
    Some(gid)
}

/// The Internet checksum: of a header that has its own, 0.
fn checksum(header: &[u8]) -> u16 {
    let words = header.as_chunks::<2>().0.iter();
    let sum: u32 = words.map(|word| u32::from(u16::from_be_bytes(*word))).sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    !(folded as u16 + (folded >> 16) as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ipv4(last: u8) -> Gid {
        [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, last]
    }

    fn to(dgid: Gid) -> DatagramAddress {
        DatagramAddress {
            dgid,
            flow_label: 0xabcde.into(),
            hop_limit: 64,
            traffic_class: 0x12,
            ..Default::default()
        }
    }

    #[test]
    fn an_ipv4_header_lies_in_the_last_20_bytes_with_its_checksum() {
        let grh = build(&ipv4(1), &to(ipv4(2)), 5, false);
        assert_eq!(grh[..20], [0; 20]);
        // The sum of the words 4512 003c 4000 4011 0a00 0001 0a00 0002 is d962.
        let expected = [
            0x45, 0x12, 0, 60, 0, 0, 0x40, 0, 64, 17, 0x26, 0x9d, 10, 0, 0, 1, 10, 0, 0, 2,
        ];
        assert_eq!(grh[20..], expected);
        assert_eq!(destination(&grh), Some(ipv4(2)));
    }

    #[test]
    fn an_ipv6_header_is_the_grh() {
        let (mut sgid, mut dgid) = ([0; 16], [0; 16]);
        (sgid[0], sgid[15], dgid[0], dgid[15]) = (0xfe, 1, 0xfe, 2);
        let grh = build(&sgid, &to(dgid), 4096, false);
        assert_eq!(grh[..8], [0x61, 0x2a, 0xbc, 0xde, 0x10, 0x20, 17, 64]);
        assert_eq!((&grh[8..24], &grh[24..]), (&sgid[..], &dgid[..]));
        assert_eq!(destination(&grh), Some(dgid));
    }

    #[test]
    fn headers_that_make_no_sense_lead_nowhere() {
        let mut grh = build(&ipv4(1), &to(ipv4(2)), 0, false);
        grh[39] ^= 1;
        assert_eq!(destination(&grh), None, "wrong checksum");
        assert_eq!(destination(&[0; 40]), None);
        assert_eq!(destination(&[0x45; 40]), None);
        assert_eq!(destination(&[0xff; 40]), None);
    }
}
