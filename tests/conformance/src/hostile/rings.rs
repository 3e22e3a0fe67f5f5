//! A process, or a kernel, that writes anything into its rings, control blocks and doorbell page.

use super::victim::{Secrets, Victim, canaries};
use crate::layout::{CQ_ERROR, access, state};
use crate::memory::Buffer;
use crate::node::{Context, KERNEL};
use crate::random::Source;
use crate::rings::SendWr;
use crate::world::World;

mod half;
mod writes;

use half::{Half, QPS, connect};

/// An attacker: a context on each node of a world, its QPs connected to one another.
pub struct Attacker {
    near: Half,
    far: Half,
    secrets: Secrets,
    /// Completions by status: an attack that brings nothing but one status tests nothing.
    pub outcomes: [u64; 32],
}

impl Attacker {
    /// One with user contexts.
    pub fn process(world: &World, victim: &Victim) -> Attacker {
        let near = world.a().create_context().expect("a context");
        let far = world.b().create_context().expect("a context");
        Attacker::of(world, victim, near, far)
    }

    /// A guest kernel that has gone mad.
    pub fn kernel(world: &World, victim: &Victim) -> Attacker {
        Attacker::of(world, victim, KERNEL, KERNEL)
    }

    fn of(world: &World, victim: &Victim, near: Context, far: Context) -> Attacker {
        let mut attacker = Attacker {
            near: Half::new(world.a(), near),
            far: Half::new(world.b(), far),
            secrets: victim.secrets(),
            outcomes: [0; 32],
        };
        attacker.connect_all();
        attacker
    }

    fn connect_all(&mut self) {
        for n in 0..QPS {
            connect(&mut self.near, &mut self.far, n);
        }
    }

    fn drain(&mut self) {
        for side in [&mut self.near, &mut self.far] {
            for cq in &mut side.cqs {
                for _ in 0..300 {
                    let Some(cqe) = cq.poll() else { break };
                    self.outcomes[usize::from(cqe.status % 32)] += 1;
                    if let Some(qp) = side.qps.iter_mut().find(|qp| qp.qpn == cqe.qpn) {
                        qp.retire(&cqe);
                    }
                }
            }
            side.node.events.take_asynchronous();
            side.node.events.take_completions();
        }
    }

    /// What broke is made whole again, so that the attack can go on.
    pub fn repair(&mut self) {
        let broken = |half: &Half| {
            half.cqs.iter().any(|cq| cq.flags() & CQ_ERROR != 0)
                || half.srq.as_ref().is_none_or(|srq| srq.flags() != 0)
        };
        if broken(&self.near) || broken(&self.far) {
            for half in [&mut self.near, &mut self.far] {
                half.demolish();
                half.build();
            }
            self.connect_all();
            return;
        }
        for n in 0..QPS {
            let state_of = |half: &Half| {
                half.node
                    .query_qp(half.context.handle, half.qps[n].qpn)
                    .expect("QUERY_QP")
                    .state
            };
            if state_of(&self.near) != state::RTS || state_of(&self.far) != state::RTS {
                connect(&mut self.near, &mut self.far, n);
            }
        }
    }

    /// One thing that a driver would not do.
    pub fn act(&mut self, world: &World, source: &mut impl Source) {
        match source.below(20) {
            0..=7 => self.write_wqe(source),
            8..=11 => self.write_recv(source),
            12 => self.lie(source),
            13 => self.scribble(source),
            14 => self.drain(),
            15 => self.repair(),
            16 => {
                // Memory comes and goes under it all.
                let half = if source.one_in(2) {
                    &mut self.near
                } else {
                    &mut self.far
                };
                let n = source.below(3) as usize;
                let old = half.mrs.remove(n);
                half.node.dereg_mr(half.context, old.key).expect("DEREG_MR");
                let (start, len) = (old.start, old.len as usize);
                let buffer = old.buffer;
                let bits = [access::ALL, access::LOCAL_WRITE, access::ALL][n];
                let mr = half
                    .node
                    .reg_mr(half.context, half.pd, buffer, start, len, bits)
                    .expect("a region");
                half.mrs.insert(n, mr);
            }
            _ => {
                world.step();
            }
        }
    }

    /// What it may not write itself is as it was, up to the edges of what it may.
    pub fn check(&self) {
        for half in [&self.near, &self.far] {
            let readonly = &half.mrs[3];
            assert!(
                readonly.buffer.holds_only(0x5d),
                "a region without LOCAL_WRITE was written"
            );
            for mr in &half.mrs {
                mr.assert_edges(0x5d);
            }
        }
    }

    /// Posts a harmless WRITE on every QP, so that a device that sleeps wakes.
    pub fn nudge(&mut self) {
        for half in [&mut self.near, &mut self.far] {
            for qp in &mut half.qps {
                let _ = qp.post_send(&SendWr::default());
                qp.ring();
            }
        }
    }

    /// Rings and control blocks, for somebody else to scribble in meanwhile.
    pub fn rings(&self) -> Vec<&Buffer> {
        let mut buffers = Vec::new();
        for half in [&self.near, &self.far] {
            buffers.extend(half.qps.iter().map(|qp| &qp.buffer));
            buffers.extend(half.cqs.iter().map(|cq| &cq.buffer));
            buffers.extend(half.srq.iter().map(|srq| &srq.buffer));
        }
        buffers
    }
}

/// Changes some bytes somewhere in a buffer.
pub fn scribble(buffer: &Buffer, source: &mut impl Source) {
    let len = 1 + source.below(16) as usize;
    let at = source.below((buffer.len() - len) as u64) as usize;
    let mut bytes = [0; 16];
    source.fill(&mut bytes);
    buffer.write(at, &bytes[..len]);
}

/// Attacks until the source is exhausted or `enough` says so.
pub fn attack(
    world: &World,
    victim: &mut Victim,
    attacker: &mut Attacker,
    source: &mut impl Source,
    mut enough: impl FnMut(u64) -> bool,
) {
    let mut round = 0;
    while !source.exhausted() && !enough(round) {
        attacker.act(world, source);
        round += 1;
        if round % 64 == 0 {
            attacker.check();
        }
        if round % 256 == 0 {
            victim.works(world);
            canaries(world);
        }
    }
    attacker.check();
    victim.works(world);
    canaries(world);
}
