"""Every transport and operation between two machines, what arrives checked on both.

Started by operations.rs in each of two guests: `operations.py DEVICE GID_INDEX` waits for the other one, and
`operations.py DEVICE GID_INDEX ADDRESS` is the other one, which asks for everything. It posts, by ibv_wr_* and by
ibv_post_send in turns, and has the far side do its part over a TCP connection of their own: receives, windows, a look at
memory. Prints a line for each transport, and "all operations" at the end.
"""

import hashlib
import json
import os
import select
import socket
import sys
import time

import pyverbs.enums as e
from pyverbs.addr import AH, AHAttr, GID, GlobalRoute
from pyverbs.cq import CQ, CompChannel
from pyverbs.device import Context
from pyverbs.mr import MR, MW, MWBind, MWBindInfo
from pyverbs.pd import PD
from pyverbs.qp import QP, DataBuffer, QPAttr, QPCap, QPEx, QPInitAttrEx
from pyverbs.srq import SRQ, SrqInitAttrEx
from pyverbs.wr import RecvWR, SGE, SendWR
from pyverbs.xrcd import XRCD, XRCDInitAttr

PORT = 18950
SIZE = 1 << 20
LIMIT = 20
# What nobody acknowledges may be lost: a message of UC or UD that has not come after so long is sent again, some times.
PATIENCE = 4
TRIES = 5
GRH = 40
QKEY = 0x11223344
IMM = 0x81020304
ATOMIC_WRITE = e.IBV_WR_ATOMIC_WRITE
FLUSH = e.IBV_WR_FLUSH
WINDOW = e.IBV_ACCESS_REMOTE_WRITE | e.IBV_ACCESS_REMOTE_READ
KINDS = {'RC': e.IBV_QPT_RC, 'UC': e.IBV_QPT_UC, 'UD': e.IBV_QPT_UD, 'XRC': e.IBV_QPT_XRC_SEND}

SENDS = e.IBV_QP_EX_WITH_SEND | e.IBV_QP_EX_WITH_SEND_WITH_IMM
WRITES = e.IBV_QP_EX_WITH_RDMA_WRITE | e.IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM
KEYS = e.IBV_QP_EX_WITH_LOCAL_INV | e.IBV_QP_EX_WITH_BIND_MW
ANSWERED = e.IBV_QP_EX_WITH_RDMA_READ | e.IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP | e.IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD
REST = e.IBV_QP_EX_WITH_SEND_WITH_INV | e.IBV_QP_EX_WITH_ATOMIC_WRITE | e.IBV_QP_EX_WITH_FLUSH
OPS = {'RC': SENDS | WRITES | KEYS | ANSWERED | REST, 'UC': SENDS | WRITES | KEYS, 'UD': SENDS,
       'XRC': SENDS | WRITES | KEYS | ANSWERED}


def bytes_of(seed, length):
    """Bytes that no other seed has; they come again after 1021, a prime, so that no shift of a frame or page looks right."""
    return (hashlib.shake_128(str(seed).encode()).digest(1021) * (length // 1021 + 1))[:length]


def event_files():
    """Descriptors of files that give events of the device."""
    found = set()
    for entry in os.listdir('/proc/self/fd'):
        try:
            if 'infinibandevent' in os.readlink(f'/proc/self/fd/{entry}'):
                found.add(int(entry))
        except FileNotFoundError:
            # That of the listing itself.
            pass
    return found


class End:
    """A QP of one transport with its CQ and memory; of XRC an initiator and a target, with a shared receive queue in the target's
    domain. What the far side asks for are its methods."""

    def __init__(self, context, gid_index, kind):
        self.context, self.gid_index, self.kind = context, gid_index, kind
        self.pd = PD(context)
        before = event_files()
        self.channel = CompChannel(context)
        (self.event_fd,) = event_files() - before
        self.cq = CQ(context, 256, channel=self.channel)
        rights = (e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE | e.IBV_ACCESS_REMOTE_READ |
                  e.IBV_ACCESS_REMOTE_ATOMIC | e.IBV_ACCESS_FLUSH_GLOBAL)
        self.mr = MR(self.pd, SIZE, rights | e.IBV_ACCESS_MW_BIND)
        cap = QPCap(max_send_wr=64, max_recv_wr=64, max_send_sge=4, max_recv_sge=4, max_inline_data=128)
        if kind == 'XRC':
            self.share(rights)
            cap = QPCap(max_send_wr=64, max_recv_wr=0, max_send_sge=4, max_recv_sge=0, max_inline_data=128)
        init = QPInitAttrEx(qp_type=KINDS[kind], scq=self.cq, rcq=self.cq, cap=cap, pd=self.pd,
                            comp_mask=e.IBV_QP_INIT_ATTR_PD | e.IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
                            send_ops_flags=OPS[kind])
        attr = QPAttr(port_num=1)
        attr.qkey, attr.pkey_index, attr.qp_access_flags = QKEY, 0, rights
        if kind == 'UD':
            # It has no rights, and goes to RTS at once.
            attr = QPAttr(port_num=1)
            attr.qkey, attr.pkey_index = QKEY, 0
        self.qp = QPEx(context, init, attr)
        self.receiver = self.target if kind == 'XRC' else self.qp
        self.windows = []

    def share(self, rights):
        """The receiving end of XRC."""
        self.domain = XRCD(self.context, XRCDInitAttr(e.IBV_XRCD_INIT_ATTR_FD | e.IBV_XRCD_INIT_ATTR_OFLAGS, os.O_CREAT, -1))
        init = SrqInitAttrEx(max_wr=64, max_sge=4)
        init.srq_type, init.pd, init.xrcd, init.cq = e.IBV_SRQT_XRC, self.pd, self.domain, self.cq
        init.comp_mask = (e.IBV_SRQ_INIT_ATTR_TYPE | e.IBV_SRQ_INIT_ATTR_PD | e.IBV_SRQ_INIT_ATTR_CQ |
                          e.IBV_SRQ_INIT_ATTR_XRCD)
        self.srq = SRQ(self.context, init)
        attr = QPAttr(port_num=1)
        attr.pkey_index, attr.qp_access_flags = 0, rights
        init = QPInitAttrEx(qp_type=e.IBV_QPT_XRC_RECV, comp_mask=e.IBV_QP_INIT_ATTR_XRCD, xrcd=self.domain)
        self.target = QP(self.context, init, attr)

    def card(self):
        """What the far side has to know."""
        gid = self.context.query_gid(1, self.gid_index).gid
        card = {'qpn': self.receiver.qp_num, 'sender': self.qp.qp_num, 'gid': gid, 'rkey': self.mr.rkey, 'addr': self.mr.buf}
        if self.kind == 'XRC':
            card['srqn'] = self.srq.get_srq_num()
        return card

    def connect(self, far):
        self.far = far
        route = GlobalRoute(dgid=GID(far['gid']), sgid_index=self.gid_index, hop_limit=64)
        way = AHAttr(port_num=1, is_global=1, gr=route)
        if self.kind == 'UD':
            self.ah = AH(self.pd, attr=way)
            return
        attr = QPAttr(port_num=1)
        attr.path_mtu, attr.dest_qp_num, attr.ah_attr = e.IBV_MTU_4096, far['qpn'], way
        attr.rq_psn = attr.sq_psn = 0x123456
        if self.kind in ('RC', 'XRC'):
            attr.max_rd_atomic = attr.max_dest_rd_atomic = 4
            attr.min_rnr_timer, attr.timeout, attr.retry_cnt, attr.rnr_retry = 12, 18, 7, 7
        self.qp.to_rts(attr)
        if self.kind == 'XRC':
            attr.dest_qp_num = far['sender']
            self.target.to_rts(attr)

    def fill(self, seed, at, length):
        self.mr.write(bytes_of(seed, length), length, at)

    def digest(self, at, length):
        return hashlib.sha256(self.mr.read(length, at)).hexdigest()

    def octets(self, at, length):
        return self.mr.read(length, at).hex()

    def receive(self, wr_id, pieces):
        sges = [SGE(self.mr.buf + at, length, self.mr.lkey) for at, length in pieces]
        queue = self.srq if self.kind == 'XRC' else self.qp
        queue.post_recv(RecvWR(wr_id=wr_id, sg=sges, num_sge=len(sges)))

    def completion(self, seconds=LIMIT):
        """The next completion; None if there is none for so long."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            count, wcs = self.cq.poll(1)
            if count:
                wc = wcs[0]
                assert wc.qp_num in (self.qp.qp_num, self.receiver.qp_num), f'a completion of QP {wc.qp_num}'
                return {'wr_id': wc.wr_id, 'status': wc.status, 'opcode': wc.opcode, 'length': wc.byte_len,
                        'flags': wc.wc_flags, 'imm': wc.imm_data, 'src': wc.src_qp}
            time.sleep(0.0005)
        return None

    def arm(self, solicited):
        self.cq.req_notify(solicited)

    def event(self, seconds):
        """Whether there is a completion event, after so long at most."""
        if not select.select([self.event_fd], [], [], seconds)[0]:
            return False
        self.channel.get_cq_event(self.cq)
        self.cq.ack_events(1)
        return True

    def bind(self, kind, at, length):
        """Binds a new memory window. Its key."""
        info = MWBindInfo(self.mr, self.mr.buf + at, length, WINDOW)
        window = MW(self.pd, e.IBV_MW_TYPE_1 if kind == 1 else e.IBV_MW_TYPE_2)
        self.windows.append(window)
        if kind == 1:
            self.qp.bind_mw(window, MWBind(info, e.IBV_SEND_SIGNALED))
            key = window.rkey
        else:
            key = window.rkey & ~0xff | (window.rkey + 7) & 0xff
            self.qp.wr_start()
            self.qp.wr_id, self.qp.wr_flags = 99, e.IBV_SEND_SIGNALED
            self.qp.wr_bind_mw(window, key, info)
            self.qp.wr_complete()
        done = self.completion()
        assert done and (done['status'], done['opcode']) == (0, e.IBV_WC_BIND_MW), done
        return key

    def invalidate(self, key):
        """Takes its bytes away from a window of type 2."""
        self.qp.wr_start()
        self.qp.wr_id, self.qp.wr_flags = 98, e.IBV_SEND_SIGNALED
        self.qp.wr_local_inv(key)
        self.qp.wr_complete()
        done = self.completion()
        assert done and (done['status'], done['opcode']) == (0, e.IBV_WC_LOCAL_INV), done

    def close_windows(self):
        for window in self.windows:
            window.close()

    def post(self, wr_id, op, pieces, far_at=0, rkey=None, flags=e.IBV_SEND_SIGNALED, operands=(0, 0), imm=IMM, old=False):
        """Posts one work request."""
        rkey = self.far['rkey'] if rkey is None else rkey
        addr = self.far['addr'] + far_at
        sges = [SGE(self.mr.buf + at, length, self.mr.lkey) for at, length in pieces]
        if old:
            wr = SendWR(wr_id=wr_id, opcode=op, sg=sges, num_sge=len(sges), imm_data=socket.htonl(imm), send_flags=flags)
            if op in (e.IBV_WR_ATOMIC_CMP_AND_SWP, e.IBV_WR_ATOMIC_FETCH_AND_ADD):
                wr.set_wr_atomic(rkey, addr, *operands)
            elif self.kind == 'UD':
                wr.set_wr_ud(self.ah, self.far['qpn'], QKEY)
            elif op not in (e.IBV_WR_SEND, e.IBV_WR_SEND_WITH_IMM):
                wr.set_wr_rdma(rkey, addr)
            if self.kind == 'XRC':
                wr.set_qp_type_xrc(self.far['srqn'])
            self.qp.post_send(wr)
            return
        qp = self.qp
        qp.wr_start()
        qp.wr_id, qp.wr_flags = wr_id, flags & ~e.IBV_SEND_INLINE
        {
            e.IBV_WR_SEND: lambda: qp.wr_send(),
            e.IBV_WR_SEND_WITH_IMM: lambda: qp.wr_send_imm(imm),
            e.IBV_WR_SEND_WITH_INV: lambda: qp.wr_send_inv(imm),
            e.IBV_WR_RDMA_WRITE: lambda: qp.wr_rdma_write(rkey, addr),
            e.IBV_WR_RDMA_WRITE_WITH_IMM: lambda: qp.wr_rdma_write_imm(rkey, addr, imm),
            e.IBV_WR_RDMA_READ: lambda: qp.wr_rdma_read(rkey, addr),
            e.IBV_WR_ATOMIC_CMP_AND_SWP: lambda: qp.wr_atomic_cmp_swp(rkey, addr, *operands),
            e.IBV_WR_ATOMIC_FETCH_AND_ADD: lambda: qp.wr_atomic_fetch_add(rkey, addr, operands[0]),
            ATOMIC_WRITE: lambda: qp.wr_atomic_write(rkey, addr, operands[0].to_bytes(8, 'little')),
            FLUSH: lambda: qp.wr_flush(rkey, addr, operands[0], e.IBV_FLUSH_GLOBAL, e.IBV_FLUSH_RANGE),
        }[op]()
        if self.kind == 'UD':
            qp.wr_set_ud_addr(self.ah, self.far['qpn'], QKEY)
        if self.kind == 'XRC':
            qp.wr_set_xrc_srqn(self.far['srqn'])
        if flags & e.IBV_SEND_INLINE:
            buffers = [DataBuffer(self.mr.buf + at, length) for at, length in pieces]
            if len(buffers) == 1:
                qp.wr_set_inline_data(self.mr.buf + pieces[0][0], pieces[0][1])
            else:
                qp.wr_set_inline_data_list(len(buffers), buffers)
        elif op not in (ATOMIC_WRITE, FLUSH):
            if len(sges) == 1:
                qp.wr_set_sge(sges[0])
            elif sges:
                qp.wr_set_sge_list(len(sges), sges)
        qp.wr_complete()


class Far:
    """The other machine's end: its methods by name."""

    def __init__(self, stream):
        self.stream = stream

    def __getattr__(self, name):
        def call(*args):
            tell(self.stream, [name, args])
            kind, value = hear(self.stream)
            assert kind == 'done', f'far side, {name}{args}: {value}'
            return value
        return call


def tell(stream, what):
    stream.write(json.dumps(what) + '\n')
    stream.flush()


def hear(stream):
    line = stream.readline()
    assert line, 'the other side is gone'
    return json.loads(line)


def serve(context, gid_index):
    listener = socket.create_server(('', PORT))
    print('listening', flush=True)
    stream = listener.accept()[0].makefile('rw')
    end = None
    while True:
        name, args = hear(stream)
        if name == 'quit':
            tell(stream, ['done', None])
            return
        try:
            if name == 'make':
                end = End(context, gid_index, *args)
                value = end.card()
            else:
                value = getattr(end, name)(*args)
        except Exception as error:
            tell(stream, ['failed', repr(error)])
            raise
        tell(stream, ['done', value])


class Check:
    """The requests of one transport, each looked at from both sides."""

    def __init__(self, context, gid_index, far, kind):
        self.kind, self.far = kind, far
        self.end = End(context, gid_index, kind)
        self.header = GRH if kind == 'UD' else 0
        far_card = far.make(kind)
        far.connect(self.end.card())
        self.end.connect(far_card)
        self.count = self.again = 0

    def arrived(self, send):
        """Sends until the far side has a completion."""
        if self.kind in ('RC', 'XRC'):
            send()
            return self.far.completion()
        for _ in range(TRIES):
            send()
            got = self.far.completion(PATIENCE)
            if got:
                return got
            self.again += 1
        raise AssertionError(f'{self.kind}: lost {TRIES} times')

    def next(self):
        self.count += 1
        return self.count

    def done(self, wr_id, opcode, what):
        got = self.end.completion()
        assert got and (got['wr_id'], got['status'], got['opcode']) == (wr_id, 0, opcode), f'{what}: {got}'
        return got

    def same(self, near_at, far_at, length, what):
        near, far = self.end.digest(near_at, length), self.far.digest(far_at, length)
        assert near == far, f'{what}: {length} bytes differ'

    def message(self, op, size, flags=0, spread=False, old=False, imm=IMM):
        """A SEND or a WRITE with immediate: posted, received, compared. Both sides' memory is other than before."""
        n = self.next()
        what = f'{self.kind} opcode {op}, {size} bytes, flags {flags}, {"list" if spread else "one piece"}, old {old}'
        writes = op == e.IBV_WR_RDMA_WRITE_WITH_IMM
        self.end.fill(n, 0, size)
        self.far.fill(-n, 0, size + self.header)
        cut, far_cut = size // 3, size // 2 + self.header
        near = [(0, cut), (cut, cut), (2 * cut, size - 2 * cut)] if spread else [(0, size)]
        whole = size + self.header
        far = [(0, far_cut), (far_cut, whole - far_cut)] if spread else [(0, whole)]
        self.far.receive(n, [(SIZE - 8, 8)] if writes else far)

        def send():
            self.end.post(n, op, near, flags=flags | e.IBV_SEND_SIGNALED, old=old, imm=imm)
            self.done(n, e.IBV_WC_RDMA_WRITE if writes else e.IBV_WC_SEND, what)

        got = self.arrived(send)
        wanted = e.IBV_WC_RECV_RDMA_WITH_IMM if writes else e.IBV_WC_RECV
        assert got, f'{what}: it did not arrive'
        assert (got['wr_id'], got['status'], got['opcode'], got['length']) == (n, 0, wanted, whole), f'{what}: {got}'
        if op in (e.IBV_WR_SEND_WITH_IMM, e.IBV_WR_RDMA_WRITE_WITH_IMM):
            assert got['flags'] & e.IBV_WC_WITH_IMM and socket.ntohl(got['imm']) == imm, f'{what}: {got}'
        if self.kind == 'UD':
            assert got['flags'] & e.IBV_WC_GRH and got['src'] == self.end.qp.qp_num, f'{what}: {got}'
            header = bytes.fromhex(self.far.octets(0, GRH))
            assert header[20] == 0x45 and header[32:36] != header[36:40], f'{what}: {header.hex()}'
        self.same(0, self.header, size, what)
        return got

    def one_sided(self, op, size, flags=0, spread=False, old=False, rkey=None, far_at=0):
        """A WRITE or a READ."""
        n = self.next()
        what = f'{self.kind} opcode {op}, {size} bytes, flags {flags}, old {old}'
        self.end.fill(n, 0, size)
        self.far.fill(-n, far_at, size)
        cut = size // 3
        near = [(0, cut), (cut, cut), (2 * cut, size - 2 * cut)] if spread else [(0, size)]
        reads = op == e.IBV_WR_RDMA_READ
        opcode = e.IBV_WC_RDMA_READ if reads else e.IBV_WC_RDMA_WRITE

        def send():
            self.end.post(n, op, near, far_at, rkey, flags | e.IBV_SEND_SIGNALED, old=old)
            return self.done(n, opcode, what)

        if self.kind == 'UC':
            self.placed(send, n, far_at, size)
        else:
            got = send()
            assert not reads or got['length'] == size, f'{what}: {got}'
        expected = hashlib.sha256(bytes_of(-n if reads else n, size)).hexdigest()
        assert self.end.digest(0, size) == expected, f'{what}: not the bytes that were meant'
        self.same(0, far_at, size, what)

    def behind(self, send, n):
        """Sends what UC may lose, and a marker behind it, until the marker has arrived: the rest has too by then, or never will."""
        self.far.receive(n, [(SIZE - 8, 8)])

        def marked():
            send()
            self.end.post(n, e.IBV_WR_SEND, [(SIZE - 8, 8)])
            self.done(n, e.IBV_WC_SEND, 'a marker')

        assert self.arrived(marked)['wr_id'] == n

    def placed(self, send, n, far_at, size):
        """Sends a WRITE of UC until it has arrived."""
        for _ in range(TRIES):
            self.behind(send, n)
            if self.far.digest(far_at, size) == self.end.digest(0, size):
                return
            self.again += 1

    def solicited(self):
        """An event for solicited receives comes for those, and for no other."""
        self.far.arm(True)
        self.message(e.IBV_WR_SEND, 64)
        assert not self.far.event(0.2), f'{self.kind}: an event that nobody solicited'
        self.message(e.IBV_WR_SEND, 64, flags=e.IBV_SEND_SOLICITED)
        assert self.far.event(LIMIT), f'{self.kind}: no event'

    def messages(self, sizes):
        for size in sizes:
            for spread in (False, True):
                self.message(e.IBV_WR_SEND, size, spread=spread, old=spread)
                self.message(e.IBV_WR_SEND_WITH_IMM, size, spread=spread, old=not spread)
        for op in (e.IBV_WR_SEND, e.IBV_WR_SEND_WITH_IMM):
            for old in (False, True):
                self.message(op, 100, flags=e.IBV_SEND_INLINE, spread=True, old=old)
        self.message(e.IBV_WR_SEND, 128, flags=e.IBV_SEND_INLINE)
        self.solicited()

    def writes(self, sizes):
        for size in sizes:
            for spread in (False, True):
                self.one_sided(e.IBV_WR_RDMA_WRITE, size, spread=spread, old=spread)
                self.message(e.IBV_WR_RDMA_WRITE_WITH_IMM, size, spread=spread, old=not spread)
        self.one_sided(e.IBV_WR_RDMA_WRITE, 120, flags=e.IBV_SEND_INLINE)
        self.message(e.IBV_WR_RDMA_WRITE_WITH_IMM, 120, flags=e.IBV_SEND_INLINE, spread=True, old=True)

    def reads(self, sizes):
        for size in sizes:
            self.one_sided(e.IBV_WR_RDMA_READ, size)
            self.one_sided(e.IBV_WR_RDMA_READ, size, spread=True, old=True)

    def atomic(self, op, opcode, operands, before, after, old=False):
        n = self.next()
        self.end.post(n, op, [(8, 8)], 64, operands=operands, old=old)
        self.done(n, opcode, f'atomic {op}')
        got = int.from_bytes(bytes.fromhex(self.end.octets(8, 8)), 'little')
        there = int.from_bytes(bytes.fromhex(self.far.octets(64, 8)), 'little')
        assert (got, there) == (before, after), f'atomic {op}: {got:#x} was there, {there:#x} is'

    def atomics(self):
        self.far.fill(7, 64, 8)
        word = int.from_bytes(bytes_of(7, 8), 'little')
        for old in (False, True):
            more = (word + 0x1_0000_0001) % 2 ** 64
            self.atomic(e.IBV_WR_ATOMIC_FETCH_AND_ADD, e.IBV_WC_FETCH_ADD, (0x1_0000_0001, 0), word, more, old)
            self.atomic(e.IBV_WR_ATOMIC_CMP_AND_SWP, e.IBV_WC_COMP_SWAP, (word, 5), more, more, old)
            self.atomic(e.IBV_WR_ATOMIC_CMP_AND_SWP, e.IBV_WC_COMP_SWAP, (more, word), more, word, old)

    def placement(self):
        """Atomic write and flush."""
        n = self.next()
        self.end.post(n, ATOMIC_WRITE, [], 64, operands=(0x0102030405060708, 0))
        self.done(n, e.IBV_WC_ATOMIC_WRITE, 'an atomic write')
        assert self.far.octets(64, 8) == '0807060504030201'
        self.end.fill(n, 0, 50_000)
        self.end.post(n, e.IBV_WR_RDMA_WRITE, [(0, 50_000)], 4096, flags=0)
        self.end.post(n, FLUSH, [], 4096, operands=(50_000, 0))
        self.done(n, e.IBV_WC_FLUSH, 'a flush')
        self.same(0, 4096, 50_000, 'what was flushed')

    def fence(self):
        """A SEND takes on what the READ before it brings."""
        size = 300_000
        for _ in range(3):
            n = self.next()
            self.end.fill(n, 0, size)
            self.far.fill(-n, 0, size)
            self.far.receive(n, [(size, size)])
            self.end.post(n, e.IBV_WR_RDMA_READ, [(0, size)], flags=0)
            self.end.post(n, e.IBV_WR_SEND, [(0, size)], flags=e.IBV_SEND_SIGNALED | e.IBV_SEND_FENCE)
            self.done(n, e.IBV_WC_SEND, 'a fenced SEND')
            got = self.far.completion()
            assert got and got['status'] == 0, got
            assert self.far.digest(size, size) == hashlib.sha256(bytes_of(-n, size)).hexdigest(), 'it took the old bytes on'

    def train(self):
        """Many at once, unsignalled but for the last."""
        n = self.next()
        self.end.fill(n, 0, 48 * 4096)
        for part in range(48):
            flags = e.IBV_SEND_SIGNALED if part == 47 else 0
            self.end.post(n, e.IBV_WR_RDMA_WRITE, [(part * 4096, 4096)], part * 4096, flags=flags, old=part % 2 == 0)
        self.done(n, e.IBV_WC_RDMA_WRITE, 'the last of many')
        self.same(0, 0, 48 * 4096, 'many WRITEs')

    def windows(self):
        """Windows of both types."""
        for kind in (1, 2):
            key = self.far.bind(kind, 8192, 50_000)
            self.one_sided(e.IBV_WR_RDMA_WRITE, 50_000, rkey=key, far_at=8192)
            if self.kind == 'RC':
                self.one_sided(e.IBV_WR_RDMA_READ, 1000, rkey=key, far_at=8192)
        return key

    def local_end(self, key):
        """Their end by LOCAL_INV: what comes for it on UC is dropped, and the connection goes on."""
        self.far.invalidate(key)
        n = self.next()
        self.end.fill(n, 0, 1000)
        self.far.fill(-n, 8192, 1000)

        def send():
            self.end.post(n, e.IBV_WR_RDMA_WRITE, [(0, 1000)], 8192, key)
            self.done(n, e.IBV_WC_RDMA_WRITE, 'a WRITE to nowhere')

        self.behind(send, n)
        assert self.far.digest(8192, 1000) == hashlib.sha256(bytes_of(-n, 1000)).hexdigest(), 'the window was still there'
        self.message(e.IBV_WR_SEND, 1000)

    def remote_end(self, key):
        """Their end by the peer's SEND_WITH_INV: the window gives nothing any more, and that ends an RC connection."""
        got = self.message(e.IBV_WR_SEND_WITH_INV, 1000, imm=key)
        assert got['flags'] & e.IBV_WC_WITH_INV and got['imm'] == key, got
        self.far.receive(1000, [(0, 8)])
        self.closed(key)
        got = self.far.completion()
        assert got and (got['wr_id'], got['status']) == (1000, e.IBV_WC_WR_FLUSH_ERR), got

    def windows_of_initiators(self):
        """The far initiator binds them. One of type 1 is open to whoever comes by a target; one of type 2 is the initiator's own."""
        self.far.invalidate(self.far.bind(2, 8192, 50_000))
        key = self.far.bind(1, 8192, 50_000)
        self.one_sided(e.IBV_WR_RDMA_WRITE, 50_000, rkey=key, far_at=8192)
        self.one_sided(e.IBV_WR_RDMA_READ, 1000, rkey=key, far_at=8192)
        self.far.close_windows()
        self.closed(key)

    def closed(self, key):
        """The window gives nothing any more, and that ends the connection."""
        self.end.post(1001, e.IBV_WR_RDMA_WRITE, [(0, 8)], 8192, key)
        got = self.end.completion()
        assert got and (got['wr_id'], got['status']) == (1001, e.IBV_WC_REM_ACCESS_ERR), got


def ask(context, gid_index, address):
    stream = socket.create_connection((address, PORT), timeout=2 * LIMIT).makefile('rw')
    far = Far(stream)
    sizes = (1, 1000, 150_000)
    for kind in KINDS:
        started = time.monotonic()
        check = Check(context, gid_index, far, kind)
        check.messages((1, 1000, 4096) if kind == 'UD' else sizes)
        if kind != 'UD':
            check.writes(sizes)
        if kind in ('RC', 'XRC'):
            check.train()
            check.reads(sizes)
            check.atomics()
            check.fence()
        if kind == 'RC':
            check.placement()
            check.remote_end(check.windows())
        if kind == 'UC':
            check.local_end(check.windows())
        if kind == 'XRC':
            check.windows_of_initiators()
        took = time.monotonic() - started
        print(f'{kind}: {check.count} requests, {check.again} sent again, {took:.1f} s', flush=True)
    far.quit()
    print('all operations', flush=True)


def main():
    name, gid_index = sys.argv[1], int(sys.argv[2])
    context = Context(name=name)
    if len(sys.argv) == 3:
        serve(context, gid_index)
    else:
        ask(context, gid_index, sys.argv[3])


main()
