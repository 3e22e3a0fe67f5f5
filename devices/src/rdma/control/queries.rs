//! Queries, GIDs, contexts and protection domains.

use zerocopy::IntoBytes;

use super::{Control, Outcome, handle, put_handle, whole};
use crate::rdma::objects::QpState;
use crate::rdma::wire::{
    AddGidBody, ClockReply, ContextReply, CountersReply, DeviceReply, Le32, Le64, PortBody,
    PortReply, Status, feature, port_state,
};

/// IB enumeration: 4096.
const MTU_4096: u8 = 5;
/// IB enumeration: 4x.
const WIDTH_4X: u8 = 2;
/// IB enumeration: EDR, 25 Gb/s a lane.
const SPEED_EDR: u8 = 32;

/// Version of the device's behaviour, major.minor.patch in 16 bits each.
const FW_VERSION: u64 = 1 << 32;

/// PCI vendor and device of virtio RDMA.
const VENDOR_ID: u32 = 0x1af4;
const VENDOR_PART_ID: u32 = 0x106a;

/// Pages from 2^12 to 2^30 bytes.
const PAGE_SIZE_CAP: u64 = (1 << 31) - (1 << 12);

/// 4.096 us * 2^15 = 134 ms: the device answers when its thread gets to it.
const ACK_DELAY: u32 = 15;

/// Size of the reply to QUERY_COUNTERS.
pub(super) fn counters_size(control: &Control<'_>) -> usize {
    size_of::<CountersReply>() + 8 * control.objects.stats.device.values().len()
}

impl Control<'_> {
    pub(super) fn query_device(&mut self, _: u32, body: &[u8], reply: &mut Vec<u8>) -> Outcome {
        let () = whole_empty(body)?;
        let l = &self.config.limits;
        let guid = self.config.guid();
        let datagrams = self.config.features & feature::UD != 0;
        let srqs = self.need(feature::SRQ).is_ok();
        let shared = |limit: u32| Le32::new(if srqs { limit } else { 0 });
        let answer = DeviceReply {
            node_guid: guid,
            sys_image_guid: guid,
            fw_version: Le64::new(FW_VERSION),
            max_mr_size: Le64::new(l.mr_size),
            page_size_cap: Le64::new(PAGE_SIZE_CAP),
            vendor_id: Le32::new(VENDOR_ID),
            vendor_part_id: Le32::new(VENDOR_PART_ID),
            hw_version: Le32::new(1),
            max_contexts: Le32::new(l.contexts),
            max_pd: Le32::new(l.pds),
            max_mr: Le32::new(l.mrs),
            max_mw: Le32::new(if self.need(feature::MW).is_ok() {
                l.mws
            } else {
                0
            }),
            max_cq: Le32::new(l.cqs),
            max_cqe: Le32::new(l.cqe),
            max_qp: Le32::new(l.qps),
            max_send_wr: Le32::new(l.send_wr),
            max_recv_wr: Le32::new(l.recv_wr),
            max_send_sge: Le32::new(l.send_sge),
            max_recv_sge: Le32::new(l.recv_sge),
            max_inline: Le32::new(l.inline),
            // The driver's own business: a WQE carries the whole address.
            max_ah: Le32::new(if datagrams { i32::MAX as u32 } else { 0 }),
            max_mcast_grp: Le32::new(if datagrams { l.mcast_groups } else { 0 }),
            max_mcast_qp: Le32::new(if datagrams { l.mcast_qps } else { 0 }),
            max_srq: shared(l.srqs),
            max_srq_wr: shared(l.srq_wr),
            max_srq_sge: shared(l.recv_sge),
            max_xrcd: Le32::new(match self.need(feature::XRC) {
                Ok(()) => l.xrcds,
                Err(_) => 0,
            }),
            max_rd_atomic: Le32::new(l.rd_atomic.into()),
            max_init_rd_atomic: Le32::new(l.rd_atomic.into()),
            max_gids: Le32::new(l.gids),
            max_pkeys: Le32::new(1),
            max_msg_size: Le32::new(l.msg_size),
            max_fast_reg_pages: Le32::new(match self.need(feature::FRWR) {
                Ok(()) => l.fast_reg_pages,
                Err(_) => 0,
            }),
            max_cmd_bytes: Le32::new(l.cmd_bytes),
            ack_delay: Le32::new(ACK_DELAY),
            max_sq_stride: Le32::new(l.sq_stride),
            ..DeviceReply::default()
        };
        reply.extend_from_slice(answer.as_bytes());
        Ok(())
    }

    pub(super) fn query_port(&mut self, _: u32, body: &[u8], reply: &mut Vec<u8>) -> Outcome {
        let body: PortBody = whole(body)?;
        if body.port.get() != 1 {
            return Err(Status::Invalid);
        }
        let l = &self.config.limits;
        let answer = PortReply {
            state: port_state::ACTIVE,
            phys_state: port_state::PHYS_LINK_UP,
            max_mtu: MTU_4096,
            active_width: WIDTH_4X,
            active_speed: SPEED_EDR,
            max_msg_size: Le32::new(l.msg_size),
            gid_table_len: Le32::new(l.gids),
            pkey_table_len: Le32::new(1),
            ..PortReply::default()
        };
        reply.extend_from_slice(answer.as_bytes());
        Ok(())
    }

    pub(super) fn query_counters(&mut self, _: u32, body: &[u8], reply: &mut Vec<u8>) -> Outcome {
        let () = whole_empty(body)?;
        let values = self.objects.stats.device.values();
        let head = CountersReply {
            count: Le32::new(values.len() as u32),
            reserved: Le32::new(0),
        };
        reply.extend_from_slice(head.as_bytes());
        for value in values {
            reply.extend_from_slice(&value.to_le_bytes());
        }
        Ok(())
    }

    pub(super) fn query_clock(&mut self, _: u32, body: &[u8], reply: &mut Vec<u8>) -> Outcome {
        let () = whole_empty(body)?;
        let answer = ClockReply {
            nanoseconds: Le64::new(self.objects.cqs.timestamp),
        };
        reply.extend_from_slice(answer.as_bytes());
        Ok(())
    }

    pub(super) fn add_gid(&mut self, _: u32, body: &[u8], _: &mut Vec<u8>) -> Outcome {
        let body: AddGidBody = whole(body)?;
        if body.reserved0 != 0 || body.reserved1 != [0; 2] {
            return Err(Status::Invalid);
        }
        self.objects.add_gid(&body)?;
        self.announce();
        Ok(())
    }

    pub(super) fn del_gid(&mut self, _: u32, body: &[u8], _: &mut Vec<u8>) -> Outcome {
        let index = handle(body)?;
        self.objects.gids.remove(index)?;
        self.announce();
        Ok(())
    }

    pub(super) fn create_context(&mut self, _: u32, body: &[u8], reply: &mut Vec<u8>) -> Outcome {
        let () = whole_empty(body)?;
        if self.config.features & feature::USER_DOORBELL == 0 {
            return Err(Status::Unsupported);
        }
        let (context, page) = self.objects.contexts.create().ok_or(Status::NoResource)?;
        if !self.sink.open_doorbell(page) {
            self.objects.contexts.remove(context);
            return Err(Status::NoResource);
        }
        let answer = ContextReply {
            context: Le32::new(context),
            doorbell_page: Le32::new(page),
        };
        reply.extend_from_slice(answer.as_bytes());
        Ok(())
    }

    pub(super) fn destroy_context(&mut self, _: u32, body: &[u8], _: &mut Vec<u8>) -> Outcome {
        let context = handle(body)?;
        if context == super::KERNEL {
            return Err(Status::Invalid);
        }
        if !self.objects.contexts.exists(context) {
            return Err(Status::NotFound);
        }
        self.fabric.forget_memory();
        for qpn in self.objects.contexts.qps(context).to_vec() {
            self.remove_qp(qpn);
        }
        if let Some(page) = self.objects.remove_context(context) {
            self.sink.close_doorbell(page);
        }
        Ok(())
    }

    pub(super) fn create_pd(&mut self, context: u32, body: &[u8], reply: &mut Vec<u8>) -> Outcome {
        let () = whole_empty(body)?;
        put_handle(reply, self.objects.create_pd(context)?);
        Ok(())
    }

    pub(super) fn destroy_pd(&mut self, context: u32, body: &[u8], _: &mut Vec<u8>) -> Outcome {
        self.objects.destroy_pd(context, handle(body)?)
    }

    pub(super) fn modify_qp(&mut self, context: u32, body: &[u8], _: &mut Vec<u8>) -> Outcome {
        let body: crate::rdma::wire::QpAttributesBody = whole(body)?;
        // A QP that stops may have payloads under way from or to memory that the driver gives back next.
        let (old, new) = self.objects.modify_qp(context, &body)?;
        if matches!(new, QpState::Reset | QpState::Err) {
            self.fabric.forget_memory();
        }
        let (qpn, mask) = (body.qpn.get(), body.mask.get());
        self.engine
            .qp_state_changed(self.objects, self.fabric, qpn, old, mask);
        Ok(())
    }

    pub(super) fn query_qp(&mut self, context: u32, body: &[u8], reply: &mut Vec<u8>) -> Outcome {
        let answer = self.objects.query_qp(context, handle(body)?)?;
        reply.extend_from_slice(answer.as_bytes());
        Ok(())
    }
}

/// Checks that a command has no body.
pub(super) fn whole_empty(body: &[u8]) -> Outcome {
    if body.is_empty() {
        Ok(())
    } else {
        Err(Status::Invalid)
    }
}
