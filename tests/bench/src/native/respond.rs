//! The responder's loop: it takes what comes.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Result;

use super::drive::{Op, Places, check};
use super::end::End;

/// Keeps the receive queues of all ends full where the operation takes receives, and gives their devices time until `stop`. `ready`
/// is called when messages may come.
pub fn respond(
    ends: &mut [End],
    op: Op,
    size: usize,
    ready: impl FnOnce(),
    stop: &AtomicBool,
) -> Result<()> {
    if op.takes_receives() {
        return receive(ends, size, ready, stop);
    }
    ready();
    while !stop.load(Ordering::Relaxed) {
        for end in &*ends {
            if end.threaded {
                // The process has nothing to do: the processor is the device's.
                std::thread::sleep(Duration::from_millis(1));
            } else {
                end.poll();
            }
        }
    }
    Ok(())
}

fn receive(ends: &mut [End], size: usize, ready: impl FnOnce(), stop: &AtomicBool) -> Result<()> {
    let mut places = Places::new(size.max(64));
    let mut refill = |end: &mut End, n: usize| {
        let sge = end.mr.sge(places.take(), size);
        end.qps[n].write_recv(n as u64, &[sge]).is_ok()
    };
    for end in &mut *ends {
        for n in 0..end.qps.len() {
            while refill(end, n) {}
            end.qps[n].publish_recvs();
        }
    }
    // Queue pairs with receives that the device does not know of yet.
    let most = ends.iter().map(|end| end.qps.len()).max().unwrap_or(0);
    let (mut written, mut is_written) = (Vec::with_capacity(most), vec![false; most]);
    ready();
    while !stop.load(Ordering::Relaxed) {
        for end in &mut *ends {
            end.poll();
            for place in 0..end.cqs.len() {
                while let Some(cqe) = end.cqs[place].poll() {
                    check(&cqe)?;
                    let n = cqe.wr_id as usize;
                    end.qps[n].retire(&cqe);
                    if refill(end, n) && !std::mem::replace(&mut is_written[n], true) {
                        written.push(n);
                    }
                }
            }
            for n in written.drain(..) {
                is_written[n] = false;
                end.qps[n].publish_recvs();
            }
        }
    }
    Ok(())
}
