//! Entropy device (virtio 1.2, 5.4): fills the driver's buffers from the host's random number generator.

use std::io;

use virtio_bindings::virtio_ids::VIRTIO_ID_RNG;
use vmm_sys_util::epoll::EventSet;

use super::queue::{Chain, DeviceQueue, serve};
use super::worker::{Poller, Worker};
use super::{ActivateError, Activation, COMMON_FEATURES, VirtioDevice};
use crate::GuestRam;

const QUEUE_SIZES: [u16; 1] = [64];
/// Most bytes given for one buffer; the driver asks again for more.
const MAX_REQUEST: usize = 4096;

/// The device.
#[derive(Default)]
pub struct Rng {
    worker: Option<Worker>,
}

impl Rng {
    /// A device that is not active.
    pub fn new() -> Self {
        Self::default()
    }
}

impl VirtioDevice for Rng {
    fn device_type(&self) -> u32 {
        VIRTIO_ID_RNG
    }
    fn features(&self) -> u64 {
        COMMON_FEATURES
    }
    fn queue_max_sizes(&self) -> &[u16] {
        &QUEUE_SIZES
    }
    fn read_config(&self, _offset: u64, data: &mut [u8]) {
        data.fill(0);
    }
    fn write_config(&mut self, _offset: u64, _data: &[u8]) {}
    fn activate(&mut self, mut activation: Activation) -> Result<(), ActivateError> {
        let queue = activation.device_queue(0)?;
        self.worker = Some(Worker::spawn("rng", move |poller| run(poller, queue))?);
        Ok(())
    }
    fn reset(&mut self) {
        self.worker = None;
    }
}

fn run(poller: Poller, mut queue: DeviceQueue) {
    let (mut chain, mut ready) = (Chain::default(), Vec::new());
    if let Err(e) = poller.add(queue.kick_fd(), 0, EventSet::IN) {
        return log::error!("virtio-rng: {e}");
    }
    loop {
        queue.clear_kick();
        if let Err(e) = serve(&mut queue, &mut chain, &poller.stop_flag(), fill) {
            return queue.fail(&e);
        }
        if !poller.wait(-1, &mut ready) {
            return;
        }
    }
}

fn fill(memory: &GuestRam, chain: &Chain) -> usize {
    let mut bytes = [0; MAX_REQUEST];
    let wanted = &mut bytes[..chain.writable.len().min(MAX_REQUEST)];
    match random(wanted).map(|()| chain.writable.write(memory, 0, wanted)) {
        Ok(Ok(())) => wanted.len(),
        Ok(Err(e)) => {
            log::debug!("virtio-rng: {e}");
            0
        }
        Err(e) => {
            log::error!("virtio-rng: no entropy from the host: {e}");
            0
        }
    }
}

fn random(out: &mut [u8]) -> io::Result<()> {
    let mut done = 0;
    while done < out.len() {
        let rest = &mut out[done..];
        // SAFETY: `rest` is a writable buffer of the length given.
        let n = unsafe { libc::getrandom(rest.as_mut_ptr().cast(), rest.len(), 0) };
        match usize::try_from(n) {
            Ok(n) => done += n,
            Err(_) => {
                let e = io::Error::last_os_error();
                if e.kind() != io::ErrorKind::Interrupted {
                    return Err(e);
                }
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::virtio::test_utils::{Driver, R, W};

    #[test]
    fn buffers_are_filled_up_to_a_bound() {
        let mut drivers = Driver::queues(&QUEUE_SIZES);
        let mut rng = Rng::new();
        rng.activate(Driver::activation(&drivers, 0)).unwrap();
        let d = &mut drivers[0];
        d.send(&[(0x1000, 64, W)]);
        d.send(&[(0x2000, 1 << 20, W)]);
        d.send(&[(0x2000, 16, R)]);
        d.send(&[(1 << 40, 16, W)]);
        let used: Vec<u32> = d.wait_used(4).into_iter().map(|u| u.1).collect();
        assert_eq!(used, [64, MAX_REQUEST as u32, 0, 0]);
        assert!(
            d.bytes(0x1000, 64)
                .chunks(16)
                .all(|c| c.iter().any(|b| *b != 0))
        );
        assert_eq!(d.bytes(0x1040, 16), [0; 16]);
        rng.reset();
        d.send(&[(0x1000, 64, W)]);
        std::thread::sleep(std::time::Duration::from_millis(20));
        assert!(d.used().is_empty(), "reset: no thread serves the queue");
    }
}
