//! Messages cross the whole device, both sides of it, without a single allocation once its buffers have grown.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use conformance::layout::send;
use conformance::on_every_fabric;
use conformance::rings::SendWr;
use conformance::side::{Connection, Side, SideOptions, connected};
use conformance::world::World;

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

/// Counts the calls of each thread.
struct Counting;

// SAFETY: hands every call on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, base: *mut u8, layout: Layout) {
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(base, layout) }
    }
    unsafe fn realloc(&self, base: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's promises are passed on.
        unsafe { System.realloc(base, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Messages at a time.
const BATCH: u64 = 32;

/// Sends a batch of each operation and waits for all completions of both sides.
fn batch(world: &World, a: &mut Side, b: &mut Side, size: usize) {
    for opcode in [send::WRITE, send::SEND, send::READ, send::FETCH_AND_ADD] {
        let sges = [if opcode == send::FETCH_AND_ADD {
            a.mr.sge(0, 8)
        } else {
            a.mr.sge(8, size)
        }];
        for wr_id in 0..BATCH {
            if opcode == send::SEND {
                b.recv(wr_id, 8, size);
            }
            a.send(
                &SendWr::signaled(wr_id, opcode)
                    .with_sges(&sges)
                    .at(&b.mr, 0),
            );
        }
        let (mut sent, mut received) = (0, 0);
        let wanted = if opcode == send::SEND { BATCH } else { 0 };
        while sent < BATCH || received < wanted {
            world.step();
            for (side, count) in [(&mut *a, &mut sent), (&mut *b, &mut received)] {
                while let Some(cqe) = side.poll() {
                    assert_eq!(cqe.status, 0);
                    *count += 1;
                }
            }
        }
    }
}

on_every_fabric! {
    fn nothing_is_allocated_for_a_message(world: &World) {
        let (mut a, mut b) = connected(world, &SideOptions::default(), &Connection::default());
        for size in [64, 10_000] {
            for _ in 0..20 {
                batch(world, &mut a, &mut b, size);
            }
            let before = ALLOCATIONS.with(Cell::get);
            for _ in 0..20 {
                batch(world, &mut a, &mut b, size);
            }
            let made = ALLOCATIONS.with(Cell::get) - before;
            assert_eq!(made, 0, "allocations for {} messages of {size} bytes", 20 * 4 * BATCH);
        }
    }
}
