//! A process posts, and hears of it.

use super::*;

/// Pages of the queues and the data of the test below.
const CQ_PAGE: u64 = 0x30_0000;
const QP_PAGE: u64 = 0x31_0000;
const DATA: u64 = 0x32_0000;

/// Makes a CQ, a region and a QP that is connected to itself, all of `context`. Returns the CQ, the key and the QP.
fn connect(rig: &mut Rig, context: u32) -> [u32; 3] {
    let mut gid = AddGidBody {
        kind: GID_TYPE_ROCE_V2,
        vlan: Le16::new(VLAN_NONE),
        ..AddGidBody::default()
    };
    gid.gid[0] = 0xfe;
    rig.must(0, opcode::ADD_GID, gid.as_bytes());
    let pd = rig.must(context, opcode::CREATE_PD, &[]);
    let cq = rig.must(context, opcode::CREATE_CQ, &create_cq(1, CQ_PAGE));
    let mr = RegMrBody {
        pd: Le32::new(pd),
        access: Le32::new(access::LOCAL_WRITE | access::REMOTE_WRITE),
        iova: Le64::new(DATA),
        length: Le64::new(0x1000),
        page_shift: 12,
        total_entries: Le32::new(1),
        num_entries: Le32::new(1),
        ..RegMrBody::default()
    };
    let body = [mr.as_bytes(), &DATA.to_le_bytes()].concat();
    let key = rig.must(context, opcode::REG_MR, &body);
    let qp = CreateQpBody {
        pd: Le32::new(pd),
        kind: Le32::new(qp_type::RC),
        send_cq: Le32::new(cq),
        recv_cq: Le32::new(cq),
        sq_entries: Le32::new(16),
        sq_stride: Le32::new(128),
        max_send_sge: Le32::new(4),
        buffer: one_page(),
        ctrl_offset: Le64::new(0x800),
        ..CreateQpBody::default()
    };
    let body = [qp.as_bytes(), &QP_PAGE.to_le_bytes()].concat();
    let qpn = rig.must(context, opcode::CREATE_QP, &body);
    let full = QpAttributesBody {
        qpn: Le32::new(qpn),
        port: 1,
        path_mtu: 5,
        access: Le32::new(access::REMOTE_WRITE),
        dest_qpn: Le32::new(qpn),
        max_rd_atomic: 1,
        max_dest_rd_atomic: 1,
        timeout: 14,
        retry_cnt: 7,
        rnr_retry: 7,
        dgid: gid.gid,
        ..QpAttributesBody::default()
    };
    use qp_mask::*;
    for (state, mask) in [
        (1, PKEY_INDEX | PORT | ACCESS),
        (
            2,
            AV | PATH_MTU | DEST_QPN | RQ_PSN | MAX_DEST_RD_ATOMIC | MIN_RNR_TIMER,
        ),
        (
            3,
            TIMEOUT | RETRY_CNT | RNR_RETRY | SQ_PSN | MAX_QP_RD_ATOMIC,
        ),
    ] {
        let body = QpAttributesBody {
            state,
            mask: Le32::new(STATE | mask),
            ..full
        };
        rig.must(context, opcode::MODIFY_QP, body.as_bytes());
    }
    [cq, key, qpn]
}

#[test]
fn a_post_rings_the_doorbell_only_when_asked_and_its_completion_raises_the_event_asked_for() {
    let mut rig = Rig::new();
    let (_, reply) = rig.command(opcode::CREATE_CONTEXT, &[]);
    let (context, page) = (word(&reply, 0), word(&reply, 4));
    let [cq, key, qpn] = connect(&mut rig, context);
    let memory = rig.queues[0].memory.clone();
    let load = |at: u64| -> u32 { memory.load(GuestAddress(at), Ordering::SeqCst).unwrap() };
    let store = |at: u64, value: u32| {
        memory
            .store(value, GuestAddress(at), Ordering::SeqCst)
            .unwrap();
    };
    let mut rings = 0;
    let stats = rig.device.stats();
    let mut n = 0;
    // Long enough to see the thread sleep: on a loaded machine it may find a post each time on its way there.
    let end = Instant::now() + PATIENCE;
    let woken = |thread: ThreadSnapshot| thread.sleeps.min(thread.doorbells);
    while n < 40 || woken(stats.snapshot().thread) < 10 {
        assert!(Instant::now() < end, "the thread does not sleep");
        let slot = u64::from(n % 16);
        let header = SendWqeHeader {
            wr_id: Le64::new(u64::from(n) + 500),
            opcode: send_opcode::WRITE,
            flags: send_flag::SIGNALED,
            num_sge: Le16::new(1),
            rkey: Le32::new(key),
            remote_addr: Le64::new(DATA + 0x800),
            ..SendWqeHeader::default()
        };
        let sge = Sge {
            addr: Le64::new(DATA),
            length: Le32::new(4),
            lkey: Le32::new(key),
        };
        store(DATA, n ^ 0x5555);
        rig.queues[0].put(QP_PAGE + slot * 128, header.as_bytes());
        rig.queues[0].put(QP_PAGE + slot * 128 + 64, sge.as_bytes());
        // Arms the CQ, and gives a buffer for the event after the fact every other time.
        store(CQ_PAGE + 0x804, n << 2 | 2);
        let give = |queue: &mut Driver| queue.send(&[(REPLY + 0x100, 8, W)]);
        if n % 2 == 0 {
            give(&mut rig.queues[3]);
        }
        if n % 4 == 0 {
            // Long enough for the device to go to sleep.
            wait_until(|| load(QP_PAGE + 0x800 + qp_control::FLAGS) & kick::SQ != 0);
        }
        store(QP_PAGE + 0x800 + qp_control::SQ_PRODUCER, n + 1);
        std::sync::atomic::fence(Ordering::SeqCst);
        if load(QP_PAGE + 0x800 + qp_control::FLAGS) & kick::SQ != 0 {
            rig.pages.ring(page);
            rings += 1;
        }
        let cqe = CQ_PAGE + slot * 64;
        wait_until(|| load(cqe + 60) == (n / 16 + 1) & 1);
        assert_eq!((load(cqe), load(cqe + 8) & 0xff), (n + 500, 0));
        assert_eq!((load(cqe + 20), load(cqe + 32)), (qpn, n));
        assert_eq!(load(DATA + 0x800), n ^ 0x5555);
        store(CQ_PAGE + 0x800, n + 1);
        if n % 2 == 1 {
            give(&mut rig.queues[3]);
        }
        assert_eq!(rig.queues[3].wait_used(1)[0].1, 8);
        assert_eq!((load(REPLY + 0x100), load(REPLY + 0x104)), (cq, n));
        n += 1;
    }
    wait_until(|| rig.queues[3].interrupt.raised(3) > 0);
    let counted = stats.snapshot();
    assert_eq!(counted.device.completions, u64::from(n));
    assert_eq!(counted.device.tx_bytes, 4 * u64::from(n));
    assert_eq!(counted.losses(), 0);
    // It may still have been on the way from one to the next when a post was done with.
    assert!(counted.thread.doorbells <= rings, "{rings}");
}
