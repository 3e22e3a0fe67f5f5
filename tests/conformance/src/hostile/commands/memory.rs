//! Commands of memory regions.

use super::Commander;
use crate::layout::{Body, RegMr, command};
use crate::random::Source;

impl Commander {
    pub(super) fn reg_mr(&self, context: u32, source: &mut impl Source) -> Vec<u8> {
        let entries = self.pages(source, 20);
        // Extents of up to 9,000 bytes stay in the zone.
        let last = self.zone.dma_pages()[252];
        let extents = source.one_in(4);
        let count = if extents {
            entries.len() / 2
        } else {
            entries.len()
        };
        let entries: Vec<u64> = if extents {
            entries
                .iter()
                .enumerate()
                .map(|(at, page)| {
                    if at % 2 == 0 {
                        (*page).min(last)
                    } else {
                        page % 9000 + 1
                    }
                })
                .collect()
        } else {
            entries
        };
        let more = source.one_in(4);
        let total = if more { count as u64 + 3 } else { count as u64 };
        let whole: u64 = if extents {
            entries.iter().skip(1).step_by(2).sum()
        } else {
            total * 4096
        };
        RegMr {
            pd: self.handle(source, command::CREATE_PD, context),
            access: Self::number(source, &[0, 1, 3, 5, 7, 15]) as u32,
            iova: Self::number(source, &[0, 0x1000, 1 << 40]),
            length: Self::number(source, &[whole, whole, whole, whole, 1, 5000]),
            offset: Self::number(source, &[0, 0, 0, 0, 0, 17, 4095]),
            page_shift: Self::number(source, &[12, 12, 12, 12, 13, 20]) as u8,
            flags: (u8::from(extents) * 2) | Self::number(source, &[u64::from(more)]) as u8,
            total_entries: Self::number(source, &[total]) as u32,
            num_entries: Self::number(source, &[count as u64]) as u32,
            entries,
        }
        .encode()
    }

    pub(super) fn mr_append(&self, context: u32, source: &mut impl Source) -> Vec<u8> {
        let entries: Vec<u64> = (0..source.pick(&[1, 3, 3, 4]))
            .map(|_| self.page(source))
            .collect();
        let mut body = Body::new()
            .u32(self.handle(source, command::MR_APPEND, context))
            .u32(Self::number(source, &[entries.len() as u64]) as u32);
        for entry in entries {
            body = body.u64(entry);
        }
        body.0
    }

    pub(super) fn rereg_mr(&self, context: u32, source: &mut impl Source) -> Vec<u8> {
        Body::new()
            .u32(self.handle(source, command::REG_MR, context))
            .u32(Self::number(source, &[1, 2, 4, 5, 7]) as u32)
            .u32(match source.below(2) {
                0 => 0,
                _ => self.handle(source, command::CREATE_PD, context),
            })
            .u32(Self::number(source, &[0, 1, 7, 31]) as u32)
            .u32(match source.below(2) {
                0 => 0,
                _ => self.handle(source, command::REG_MR, context),
            })
            .u32(Self::number(source, &[0]) as u32)
            .0
    }

    pub(super) fn alloc_mr(&self, context: u32, source: &mut impl Source) -> Vec<u8> {
        let pages = self.pages(source, 2);
        let mut body = Body::new()
            .u32(self.handle(source, command::CREATE_PD, context))
            .u32(Self::number(source, &[1, 512]) as u32)
            .u64(Self::number(source, &[pages.len() as u64 * 4096]))
            .u32(12)
            .u32(Self::number(source, &[pages.len() as u64]) as u32)
            .u64(Self::number(source, &[0]))
            .u64(Self::number(source, &[0, 8]));
        for page in pages {
            body = body.u64(page);
        }
        body.0
    }
}
