//! A kernel, or a context that the kernel speaks for, that gives any command.

use std::sync::Arc;

use super::victim::{Secrets, Victim, canaries};
use crate::layout::{Body, command, le32, request};
use crate::memory::Buffer;
use crate::node::Node;
use crate::random::Source;
use crate::world::World;

mod bodies;
mod memory;
mod queues;

/// Somebody who gives commands that nobody checked.
pub struct Commander {
    node: Arc<Node>,
    secrets: Secrets,
    contexts: Vec<u32>,
    /// What was made: the command, the owner, the handle.
    objects: Vec<(u16, u32, u32)>,
    /// Pages that it may name; all others that it names are not memory.
    zone: Buffer,
    /// How often each of [`command::ALL`] was carried out: an attack of refusals only tests little.
    pub done: [u64; command::ALL.len()],
}

impl Commander {
    /// One on the world's first node.
    pub fn new(world: &World, victim: &Victim) -> Commander {
        let node = world.a().clone();
        let zone = node.memory.aligned(256 * 4096, 256);
        Commander {
            node,
            secrets: victim.secrets(),
            contexts: vec![0],
            objects: Vec::new(),
            zone,
            done: [0; command::ALL.len()],
        }
    }

    /// One command.
    pub fn act(&mut self, source: &mut impl Source) {
        let opcode = if source.one_in(20) {
            source.word() as u16
        } else {
            source.pick(&command::ALL)
        };
        let opcode = if opcode == command::DESTROY_CONTEXT && !source.one_in(16) {
            // Else nobody lives long enough to do anything.
            command::CREATE_QP
        } else {
            opcode
        };
        let kernels = matches!(
            opcode,
            command::ADD_GID
                | command::DEL_GID
                | command::CREATE_CONTEXT
                | command::DESTROY_CONTEXT
                | command::ALLOC_XRCD
                | command::DEALLOC_XRCD
        );
        let context = match source.below(12) {
            0 => source.edge() as u32,
            n if n > 2 && kernels => 0,
            _ => source.pick(&self.contexts),
        };
        let mut body = self.body(opcode, context, source);
        let fixed = match opcode {
            command::REG_MR | command::CREATE_CQ | command::RESIZE_CQ => 48,
            command::MR_APPEND => 8,
            command::ALLOC_MR => 40,
            command::CREATE_QP => 104,
            command::CREATE_SRQ => 72,
            command::MODIFY_SRQ => 56,
            // Which slot and whose context are not changed: the others' are the kernel's to end, and that would be no attack.
            command::ADD_GID | command::DEL_GID | command::DESTROY_CONTEXT => 0,
            _ => body.len(),
        };
        if source.one_in(8) && fixed > 0 {
            // Lists of pages are left alone: a changed address may be memory that is not ours to register.
            let at = source.below(fixed as u64) as usize;
            body[at] ^= source.word() as u8;
        }
        let huge = match opcode {
            command::REG_MR => u32::from(body[32]),
            command::CREATE_CQ | command::RESIZE_CQ => le32(&body, 16),
            command::CREATE_QP => le32(&body, 64),
            command::CREATE_SRQ => le32(&body, 40),
            command::MODIFY_SRQ => le32(&body, 24),
            _ => 0,
        };
        if (21..=30).contains(&huge) {
            // A page of that size would hold more than the zone.
            return;
        }
        if source.one_in(16) {
            let len = source.below(body.len() as u64 + 20) as usize;
            body.resize(len, 0xff);
        }
        if self.secrets.contexts.contains(&context) {
            return;
        }
        if opcode == command::DESTROY_CONTEXT
            && body.len() >= 4
            && self.secrets.contexts.contains(&le32(&body, 0))
        {
            return;
        }
        if matches!(opcode, command::ADD_GID | command::DEL_GID)
            && body.len() >= 4
            && le32(&body, 0) == 0
        {
            return;
        }
        let room = if source.one_in(16) {
            source.below(40) as usize
        } else {
            4096
        };
        let mut bytes = request(opcode, context, 1, &body);
        if source.one_in(24) {
            let at = source.below(24) as usize;
            bytes[at] ^= 1 << source.below(8);
            // Not to somebody else's name by a changed bit.
            if le32(&bytes, 8) != context || bytes[..2] != opcode.to_le_bytes() {
                return;
            }
        }
        let reply = self.node.raw_command(&bytes, room);
        assert!(reply.len() <= room, "a reply longer than its buffer");
        if reply.len() < 16 {
            return;
        }
        assert!(le32(&reply, 0) <= 10, "a status that is not in the table");
        assert_eq!(le32(&reply, 4) as usize, reply.len());
        if le32(&reply, 0) == 0 {
            self.learn(opcode, context, &body, &reply, source);
        }
    }

    /// A command was carried out: there is an object more, or less.
    fn learn(
        &mut self,
        opcode: u16,
        context: u32,
        body: &[u8],
        reply: &[u8],
        source: &mut impl Source,
    ) {
        let handle = |at| le32(reply, at);
        if let Some(n) = command::ALL.iter().position(|known| *known == opcode) {
            self.done[n] += 1;
        }
        match opcode {
            command::CREATE_CONTEXT if self.contexts.len() < 8 => self.contexts.push(handle(16)),
            command::CREATE_CONTEXT => {
                let body = Body::new().u32(handle(16)).u32(0).0;
                self.node
                    .command(command::DESTROY_CONTEXT, 0, &body)
                    .expect("DESTROY_CONTEXT");
            }
            command::CREATE_PD
            | command::REG_MR
            | command::CREATE_CQ
            | command::CREATE_QP
            | command::CREATE_SRQ
            | command::ALLOC_XRCD
            | command::ALLOC_MW => {
                let more = opcode == command::REG_MR && body[33] & 1 != 0;
                let sort = if more { command::MR_APPEND } else { opcode };
                let object = (sort, context, handle(16));
                if self.objects.len() < 256 {
                    self.objects.push(object);
                } else {
                    let at = source.below(256) as usize;
                    self.objects[at] = object;
                }
            }
            command::DESTROY_CONTEXT => {
                let gone = le32(body, 0);
                self.contexts
                    .retain(|context| *context != gone || gone == 0);
            }
            _ => {}
        }
    }

    /// Rings that live in the zone are changed at random; what the device makes of them is its own affair.
    pub fn scribble(&self, source: &mut impl Source) {
        super::rings::scribble(&self.zone, source);
        let page = source.below(16) as u32;
        self.node.bells.ring(page, 0);
    }

    /// Commands until the source is exhausted or `enough` says so.
    pub fn attack(
        &mut self,
        world: &World,
        victim: &mut Victim,
        source: &mut impl Source,
        mut enough: impl FnMut(u64) -> bool,
    ) {
        let mut round = 0;
        while !source.exhausted() && !enough(round) {
            self.act(source);
            if source.one_in(4) {
                self.scribble(source);
            }
            if source.one_in(8) {
                world.step();
            }
            round += 1;
            if round % 512 == 0 {
                victim.works(world);
                canaries(world);
            }
        }
        victim.works(world);
        canaries(world);
        self.node.events.take_asynchronous();
        self.node.events.take_completions();
    }
}
