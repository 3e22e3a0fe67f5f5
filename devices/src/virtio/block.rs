//! Block device (virtio 1.2, 5.2): a raw image file.
//!
//! One thread serves one queue, request by request, straight between the file and guest memory. Writes are in the host's page
//! cache when they complete, and on the disk after a flush.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use virtio_bindings::virtio_blk::{
    VIRTIO_BLK_F_BLK_SIZE, VIRTIO_BLK_F_FLUSH, VIRTIO_BLK_F_RO, VIRTIO_BLK_F_SEG_MAX,
    VIRTIO_BLK_ID_BYTES, VIRTIO_BLK_S_IOERR, VIRTIO_BLK_S_OK, VIRTIO_BLK_S_UNSUPP,
    VIRTIO_BLK_T_FLUSH, VIRTIO_BLK_T_GET_ID, VIRTIO_BLK_T_IN, VIRTIO_BLK_T_OUT,
};
use virtio_bindings::virtio_ids::VIRTIO_ID_BLOCK;
use vm_memory::Permissions;
use vmm_sys_util::epoll::EventSet;

use super::queue::{Chain, DeviceQueue, QueueError, serve};
use super::worker::{Poller, Worker};
use super::{ActivateError, Activation, COMMON_FEATURES, VirtioDevice, read_config_image};
use crate::GuestRam;

const QUEUE_SIZES: [u16; 1] = [256];
const SECTOR: u64 = 512;
const HEADER: usize = 16;
/// Data segments of a request: the queue's length less the header and the status byte.
const SEG_MAX: u32 = QUEUE_SIZES[0] as u32 - 2;
/// Most bytes that one request moves.
const MAX_REQUEST: usize = 64 << 20;
const ID_BYTES: usize = VIRTIO_BLK_ID_BYTES as usize;

/// Why an image cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// The host refused.
    #[error("disk image {path}: {source}", path = .path.display())]
    Io {
        /// The image.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Neither a file nor a block device.
    #[error("disk image {}: neither a regular file nor a block device", .0.display())]
    NotADisk(PathBuf),
    /// Not made of whole sectors.
    #[error("disk image {path}: its size, {size} bytes, must be a multiple of 512, and not 0", path = .path.display())]
    Size {
        /// The image.
        path: PathBuf,
        /// Its size in bytes.
        size: u64,
    },
    /// Another process uses it.
    #[error("disk image {}: in use by another process, and one of the two writes to it", .0.display())]
    Locked(PathBuf),
}

struct Image {
    file: File,
    sectors: u64,
    read_only: bool,
    id: [u8; ID_BYTES],
}

/// The device.
pub struct Block {
    image: Arc<Image>,
    worker: Option<Worker>,
}

impl Block {
    /// Opens `path`. The device's ID (`/sys/block/*/serial` in Linux guests) is `id`, cut to 20 bytes.
    ///
    /// A writer keeps all others out, by `flock`.
    pub fn open(path: &Path, read_only: bool, id: &str) -> Result<Self, ImageError> {
        let failed = |source| ImageError::Io {
            path: path.into(),
            source,
        };
        let mut file = OpenOptions::new()
            .read(true)
            .write(!read_only)
            .open(path)
            .map_err(failed)?;
        let kind = file.metadata().map_err(failed)?.file_type();
        if !kind.is_file() && !kind.is_block_device() {
            return Err(ImageError::NotADisk(path.into()));
        }
        let size = io::Seek::seek(&mut file, io::SeekFrom::End(0)).map_err(failed)?;
        if size == 0 || !size.is_multiple_of(SECTOR) {
            return Err(ImageError::Size {
                path: path.into(),
                size,
            });
        }
        let operation = if read_only {
            libc::LOCK_SH
        } else {
            libc::LOCK_EX
        };
        // SAFETY: a system call on a descriptor that is open.
        let locked = unsafe { libc::flock(file.as_raw_fd(), operation | libc::LOCK_NB) };
        // File systems without locks do not keep others out; that is no reason to fail.
        if locked != 0 && io::Error::last_os_error().kind() == io::ErrorKind::WouldBlock {
            return Err(ImageError::Locked(path.into()));
        }
        let mut id_bytes = [0; ID_BYTES];
        let n = id.len().min(ID_BYTES);
        id_bytes[..n].copy_from_slice(&id.as_bytes()[..n]);
        let image = Image {
            file,
            sectors: size / SECTOR,
            read_only,
            id: id_bytes,
        };
        Ok(Self {
            image: Arc::new(image),
            worker: None,
        })
    }
}

impl VirtioDevice for Block {
    fn device_type(&self) -> u32 {
        VIRTIO_ID_BLOCK
    }

    fn features(&self) -> u64 {
        let ro = if self.image.read_only {
            1 << VIRTIO_BLK_F_RO
        } else {
            0
        };
        COMMON_FEATURES
            | ro
            | 1 << VIRTIO_BLK_F_FLUSH
            | 1 << VIRTIO_BLK_F_SEG_MAX
            | 1 << VIRTIO_BLK_F_BLK_SIZE
    }

    fn queue_max_sizes(&self) -> &[u16] {
        &QUEUE_SIZES
    }

    fn read_config(&self, offset: u64, data: &mut [u8]) {
        // struct virtio_blk_config: capacity at 0, seg_max at 12, blk_size at 20.
        let mut config = [0; 24];
        config[..8].copy_from_slice(&self.image.sectors.to_le_bytes());
        config[12..16].copy_from_slice(&SEG_MAX.to_le_bytes());
        config[20..].copy_from_slice(&(SECTOR as u32).to_le_bytes());
        read_config_image(&config, offset, data);
    }

    fn write_config(&mut self, _offset: u64, _data: &[u8]) {}

    fn activate(&mut self, mut activation: Activation) -> Result<(), ActivateError> {
        let queue = activation.device_queue(0)?;
        let image = self.image.clone();
        self.worker = Some(Worker::spawn("block", move |poller| {
            run(poller, queue, &image)
        })?);
        Ok(())
    }

    fn reset(&mut self) {
        self.worker = None;
    }
}

fn run(poller: Poller, mut queue: DeviceQueue, image: &Image) {
    let (mut chain, mut ready, mut iovecs) = (Chain::default(), Vec::new(), Vec::new());
    if let Err(e) = poller.add(queue.kick_fd(), 0, EventSet::IN) {
        return log::error!("virtio-blk: {e}");
    }
    loop {
        queue.clear_kick();
        let handle = |memory: &GuestRam, chain: &Chain| image.handle(memory, chain, &mut iovecs);
        if let Err(e) = serve(&mut queue, &mut chain, &poller.stop_flag(), handle) {
            return queue.fail(&e);
        }
        if !poller.wait(-1, &mut ready) {
            return;
        }
    }
}

/// Why a request ends without success.
#[derive(Debug, thiserror::Error)]
enum RequestError {
    #[error("request type {0} is not supported")]
    Unsupported(u32),
    #[error("{len} bytes at sector {sector} of a disk of {sectors} sectors")]
    Range {
        sector: u64,
        len: usize,
        sectors: u64,
    },
    #[error("write to a read-only disk")]
    ReadOnly,
    #[error(transparent)]
    Queue(#[from] QueueError),
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl Image {
    /// Serves one request; returns the bytes written to guest memory, the status byte among them.
    fn handle(&self, memory: &GuestRam, chain: &Chain, iovecs: &mut Vec<libc::iovec>) -> usize {
        // The status is the last byte that the device may write. Without room for it there is nobody to answer.
        let Some(room) = chain.writable.len().checked_sub(1) else {
            return 0;
        };
        let (written, status) = match self.request(memory, chain, room, iovecs) {
            Ok(written) => (written, VIRTIO_BLK_S_OK),
            Err(e) => {
                log::debug!("virtio-blk: {e}");
                (
                    0,
                    if matches!(e, RequestError::Unsupported(_)) {
                        VIRTIO_BLK_S_UNSUPP
                    } else {
                        VIRTIO_BLK_S_IOERR
                    },
                )
            }
        };
        match chain.writable.write(memory, room, &[status as u8]) {
            // The used length counts from the first byte on, and the status stands at the end.
            Ok(()) if written == room => room + 1,
            _ => written,
        }
    }

    fn request(
        &self,
        memory: &GuestRam,
        chain: &Chain,
        room: usize,
        iovecs: &mut Vec<libc::iovec>,
    ) -> Result<usize, RequestError> {
        let mut header = [0; HEADER];
        chain.readable.read(memory, 0, &mut header)?;
        let [a, b, c, d, _, _, _, _, sector @ ..] = header;
        let (kind, sector) = (u32::from_le_bytes([a, b, c, d]), u64::from_le_bytes(sector));
        iovecs.clear();
        match kind {
            VIRTIO_BLK_T_IN => {
                let at = self.check_range(sector, room)?;
                chain
                    .writable
                    .iovecs(memory, 0, room, Permissions::Write, iovecs)?;
                self.transfer(iovecs, at, libc::preadv)?;
                Ok(room)
            }
            VIRTIO_BLK_T_OUT => {
                if self.read_only {
                    return Err(RequestError::ReadOnly);
                }
                let len = chain.readable.len() - HEADER;
                let at = self.check_range(sector, len)?;
                chain
                    .readable
                    .iovecs(memory, HEADER, len, Permissions::Read, iovecs)?;
                self.transfer(iovecs, at, libc::pwritev)?;
                Ok(0)
            }
            VIRTIO_BLK_T_FLUSH => {
                if !self.read_only {
                    self.file.sync_data()?;
                }
                Ok(0)
            }
            VIRTIO_BLK_T_GET_ID => {
                let n = room.min(ID_BYTES);
                chain.writable.write(memory, 0, &self.id[..n])?;
                Ok(n)
            }
            other => Err(RequestError::Unsupported(other)),
        }
    }

    /// The byte offset of a request that lies within the disk and is made of whole sectors.
    fn check_range(&self, sector: u64, len: usize) -> Result<u64, RequestError> {
        let end = sector.checked_add((len as u64).div_ceil(SECTOR));
        let whole = len > 0 && len <= MAX_REQUEST && (len as u64).is_multiple_of(SECTOR);
        if whole && end.is_some_and(|end| end <= self.sectors) {
            Ok(sector * SECTOR)
        } else {
            Err(RequestError::Range {
                sector,
                len,
                sectors: self.sectors,
            })
        }
    }

    /// Moves all of `iovecs`, at `at` of the file, by `preadv` or `pwritev`.
    fn transfer(
        &self,
        iovecs: &mut [libc::iovec],
        mut at: u64,
        call: unsafe extern "C" fn(
            libc::c_int,
            *const libc::iovec,
            libc::c_int,
            libc::off_t,
        ) -> libc::ssize_t,
    ) -> io::Result<()> {
        let mut rest = iovecs;
        while let Some(first) = rest.first() {
            if first.iov_len == 0 {
                rest = &mut rest[1..];
                continue;
            }
            let count = rest.len().min(libc::UIO_MAXIOV as usize);
            // SAFETY: every element points into guest memory, which the queue's `Arc` keeps mapped, and was checked to lie
            // within it. The guest may change it at the same time; the kernel, not Rust, accesses it.
            let n = unsafe {
                call(
                    self.file.as_raw_fd(),
                    rest.as_ptr(),
                    count as libc::c_int,
                    at as libc::off_t,
                )
            };
            let Ok(n) = usize::try_from(n) else {
                let e = io::Error::last_os_error();
                if e.kind() == io::ErrorKind::Interrupted {
                    continue;
                }
                return Err(e);
            };
            if n == 0 {
                // The image was cut short behind our back.
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            at += n as u64;
            rest = advance(rest, n);
        }
        Ok(())
    }
}

/// What is left of `iovecs` after `n` bytes.
fn advance(mut iovecs: &mut [libc::iovec], mut n: usize) -> &mut [libc::iovec] {
    while let Some(first) = iovecs.first_mut() {
        if n < first.iov_len {
            first.iov_base = first.iov_base.wrapping_byte_add(n);
            first.iov_len -= n;
            break;
        }
        n -= first.iov_len;
        iovecs = &mut iovecs[1..];
    }
    iovecs
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::virtio::test_utils::{Driver, R, TempDir, W};

    const SECTORS: u64 = 64;
    const HDR: u64 = 0x1000;
    const DATA: u64 = 0x2000;
    const STATUS: u64 = 0x1_0000;

    struct Fixture {
        dir: TempDir,
        block: Block,
        driver: Vec<Driver>,
    }

    impl Fixture {
        fn new(read_only: bool) -> Self {
            let dir = TempDir::new();
            let image: Vec<u8> = (0..SECTORS * SECTOR)
                .map(|i| (i / SECTOR + i % 7) as u8)
                .collect();
            std::fs::write(dir.0.join("disk"), image).unwrap();
            let mut block =
                Block::open(&dir.0.join("disk"), read_only, "longarm-disk-of-the-test").unwrap();
            let driver = Driver::queues(&QUEUE_SIZES);
            block.activate(Driver::activation(&driver, 0)).unwrap();
            Self { dir, block, driver }
        }
        fn run(&mut self, kind: u32, sector: u64, data: &[(u64, u32, u16)]) -> (u8, u32) {
            let d = &mut self.driver[0];
            let mut header = [0; 16];
            header[..4].copy_from_slice(&kind.to_le_bytes());
            header[8..].copy_from_slice(&sector.to_le_bytes());
            d.put(HDR, &header);
            d.put(STATUS, &[0xee]);
            let mut chain = vec![(HDR, 16, R)];
            chain.extend(data);
            chain.push((STATUS, 1, W));
            d.send(&chain);
            let used = d.wait_used(1);
            (d.bytes(STATUS, 1)[0], used[0].1)
        }
        fn image(&self) -> Vec<u8> {
            std::fs::read(self.dir.0.join("disk")).unwrap()
        }
    }

    #[test]
    fn reads_scatter_over_odd_buffers() {
        let mut f = Fixture::new(true);
        let got = f.run(
            VIRTIO_BLK_T_IN,
            3,
            &[
                (DATA, 100, W),
                (DATA + 0x1000, 1, W),
                (DATA + 0x2000, 923, W),
            ],
        );
        assert_eq!(got, (0, 1025));
        let d = &f.driver[0];
        let read = [
            d.bytes(DATA, 100),
            d.bytes(DATA + 0x1000, 1),
            d.bytes(DATA + 0x2000, 923),
        ]
        .concat();
        assert_eq!(read, f.image()[3 * 512..5 * 512]);
    }

    #[test]
    fn writes_land_and_flush_answers() {
        let mut f = Fixture::new(false);
        let data: Vec<u8> = (0..1024).map(|i| (i * 31) as u8).collect();
        f.driver[0].put(DATA, &data);
        let before = f.image();
        assert_eq!(
            f.run(
                VIRTIO_BLK_T_OUT,
                SECTORS - 2,
                &[(DATA, 1000, R), (DATA + 1000, 24, R)]
            ),
            (0, 1)
        );
        assert_eq!(f.run(VIRTIO_BLK_T_FLUSH, 0, &[]), (0, 1));
        let after = f.image();
        assert_eq!(after[..62 * 512], before[..62 * 512]);
        assert_eq!(after[62 * 512..], data);
    }

    #[test]
    fn the_id_is_cut_to_twenty_bytes() {
        let mut f = Fixture::new(true);
        assert_eq!(f.run(VIRTIO_BLK_T_GET_ID, 0, &[(DATA, 20, W)]), (0, 21));
        assert_eq!(f.driver[0].bytes(DATA, 20), b"longarm-disk-of-the-");
    }

    #[test]
    fn what_is_not_allowed_fails_and_changes_nothing() {
        let mut f = Fixture::new(false);
        let before = f.image();
        for (kind, sector, len, direction) in [
            (VIRTIO_BLK_T_OUT, SECTORS, 512, R),
            (VIRTIO_BLK_T_OUT, SECTORS - 1, 1024, R),
            (VIRTIO_BLK_T_OUT, u64::MAX, 512, R),
            (VIRTIO_BLK_T_OUT, u64::MAX / 512 + 1, 512, R),
            (VIRTIO_BLK_T_OUT, 0, 511, R),
            (VIRTIO_BLK_T_IN, SECTORS, 512, W),
            (VIRTIO_BLK_T_IN, 0, 513, W),
        ] {
            assert_eq!(
                f.run(kind, sector, &[(DATA, len, direction)]).0,
                VIRTIO_BLK_S_IOERR as u8,
                "{sector} {len}"
            );
        }
        assert_eq!(f.run(VIRTIO_BLK_T_OUT, 0, &[]).0, VIRTIO_BLK_S_IOERR as u8);
        assert_eq!(
            f.run(VIRTIO_BLK_T_OUT, 0, &[(1 << 40, 512, R)]).0,
            VIRTIO_BLK_S_IOERR as u8
        );
        assert_eq!(f.run(77, 0, &[]).0, VIRTIO_BLK_S_UNSUPP as u8);
        assert_eq!(f.image(), before);
        let mut ro = Fixture::new(true);
        assert_eq!(
            ro.run(VIRTIO_BLK_T_OUT, 0, &[(DATA, 512, R)]).0,
            VIRTIO_BLK_S_IOERR as u8
        );
        assert_eq!(ro.image(), before);
    }

    #[test]
    fn malformed_chains_are_given_back() {
        let mut f = Fixture::new(false);
        let d = &mut f.driver[0];
        for chain in [
            &[(HDR, 16, R)][..],
            &[(HDR, 4, R), (STATUS, 1, W)],
            &[(STATUS, 1, W)],
            &[(HDR, 16, R), (1 << 50, 1, W)],
        ] {
            d.send(chain);
            d.wait_used(1);
        }
        assert_eq!(
            f.run(VIRTIO_BLK_T_FLUSH, 0, &[]).0,
            0,
            "the device lives on"
        );
    }

    #[test]
    fn a_broken_ring_asks_for_a_reset_and_a_new_start_works() {
        let mut f = Fixture::new(false);
        f.driver[0].set_avail_idx(5000);
        f.driver[0].kick.write(1).unwrap();
        let interrupt = f.driver[0].interrupt.clone();
        crate::virtio::test_utils::wait_until(|| interrupt.resets_asked() == 1);
        f.block.reset();
        f.driver = Driver::queues(&QUEUE_SIZES);
        f.block.activate(Driver::activation(&f.driver, 0)).unwrap();
        assert_eq!(f.run(VIRTIO_BLK_T_FLUSH, 0, &[]).0, 0);
    }

    #[test]
    fn configuration_tells_capacity_and_limits() {
        let f = Fixture::new(true);
        let mut config = [0; 32];
        f.block.read_config(0, &mut config);
        assert_eq!(config[..8], SECTORS.to_le_bytes());
        assert_eq!(config[12..16], 254u32.to_le_bytes());
        assert_eq!(config[20..24], 512u32.to_le_bytes());
        assert_ne!(f.block.features() & 1 << VIRTIO_BLK_F_RO, 0);
    }

    #[test]
    fn unusable_images_are_named() {
        let dir = TempDir::new();
        let path = dir.0.join("disk");
        let text = |p: &Path, ro| Block::open(p, ro, "").err().unwrap().to_string();
        assert!(text(&path, true).contains("No such file"));
        std::fs::write(&path, [0; 700]).unwrap();
        assert!(text(&path, true).contains("700 bytes"));
        assert!(text(&dir.0, true).contains("neither"));
        std::fs::write(&path, [0; 1024]).unwrap();
        let first = Block::open(&path, true, "").unwrap();
        let second = Block::open(&path, true, "").unwrap();
        assert!(text(&path, false).contains("in use"));
        drop((first, second));
        let _writer = Block::open(&path, false, "").unwrap();
        assert!(text(&path, true).contains("in use"));
    }
}
