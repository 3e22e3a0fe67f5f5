//! A micro-guest: a few instructions that work through a script in guest memory, so that a test can say in Rust what the
//! guest shall do. Small and slow enough for any KVM.

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use api::{MemoryConfig, SerialConfig, VmConfig};
use arch::x86_64::layout;
use vm_memory::{Bytes, GuestAddress};
use vmm::machine::Machine;
use vmm::outcome::Outcome;

/// Where the code is loaded and entered.
const LOAD: u64 = 0x10_0000;
/// The interrupt handler in it.
const HANDLER: u64 = LOAD + 0x80;
/// `lidt` operand; page directory for the 64-bit window; interrupt table; script. The code counts interrupts at 1fe000.
const IDT_POINTER: u64 = 0x1f_f000;
const WINDOW_DIRECTORY: u64 = 0x1f_d000;
const IDT: u64 = 0x1f_c000;
const SCRIPT: u64 = 0x20_0000;
/// Free for tests.
pub const SCRATCH: u64 = 0x30_0000;
/// The vector whose handler counts.
pub const VECTOR: u32 = 0x40;

/// ```text
///   mov esi, SCRIPT; lidt [IDT_POINTER]
/// next: mov eax, [rsi]; mov ecx, [rsi+4]; mov rdx, [rsi+8]; add rsi, 16
///   1: mov [rdx], cl    2: mov [rdx], cx    3: mov [rdx], ecx    4: mov eax, [rdx]; mov [rsi-12], eax
///   5: out dx, cl       6: until [1fe000]: sti; hlt; cli. dec [1fe000]    7: for ever: inc [rdx]
///   else: out 0x600, S5; hlt
/// handler: inc [1fe000]; end of interrupt; iretq
/// ```
const CODE: [u8; 150] = [
    0xbe, 0x00, 0x00, 0x20, 0x00, 0x0f, 0x01, 0x1c, 0x25, 0x00, 0xf0, 0x1f, 0x00, 0x8b, 0x06, 0x8b,
    0x4e, 0x04, 0x48, 0x8b, 0x56, 0x08, 0x48, 0x83, 0xc6, 0x10, 0x83, 0xf8, 0x01, 0x74, 0x28, 0x83,
    0xf8, 0x02, 0x74, 0x27, 0x83, 0xf8, 0x03, 0x74, 0x27, 0x83, 0xf8, 0x04, 0x74, 0x26, 0x83, 0xf8,
    0x05, 0x74, 0x28, 0x83, 0xf8, 0x06, 0x74, 0x28, 0x83, 0xf8, 0x07, 0x74, 0x3b, 0x66, 0xba, 0x00,
    0x06, 0xb0, 0x34, 0xee, 0xf4, 0xeb, 0xfd, 0x88, 0x0a, 0xeb, 0xc2, 0x66, 0x89, 0x0a, 0xeb, 0xbd,
    0x89, 0x0a, 0xeb, 0xb9, 0x8b, 0x02, 0x89, 0x46, 0xf4, 0xeb, 0xb2, 0x88, 0xc8, 0xee, 0xeb, 0xad,
    0x83, 0x3c, 0x25, 0x00, 0xe0, 0x1f, 0x00, 0x00, 0x75, 0x05, 0xfb, 0xf4, 0xfa, 0xeb, 0xf1, 0xff,
    0x0c, 0x25, 0x00, 0xe0, 0x1f, 0x00, 0xeb, 0x95, 0xff, 0x02, 0xeb, 0xfc, 0x0f, 0x1f, 0x40, 0x00,
    0xff, 0x04, 0x25, 0x00, 0xe0, 0x1f, 0x00, 0x50, 0xb8, 0xb0, 0x00, 0xe0, 0xfe, 0xc7, 0x00, 0x00,
    0x00, 0x00, 0x00, 0x58, 0x48, 0xcf,
];

/// 32-bit code: if `[ebx]` is `hvm_start_info`'s magic number, write "P\n" to COM1 and power off; else halt for ever.
pub const PVH_CODE: [u8; 29] = [
    0x8b, 0x03, 0x3d, 0x78, 0xc5, 0x6e, 0x33, 0x75, 0x11, 0x66, 0xba, 0xf8, 0x03, 0xb0, 0x50, 0xee,
    0xb0, 0x0a, 0xee, 0x66, 0xba, 0x00, 0x06, 0xb0, 0x34, 0xee, 0xf4, 0xeb, 0xfd,
];

/// One step of a script.
#[derive(Debug, Clone, Copy)]
pub enum Step {
    Write8(u64, u8),
    Write16(u64, u16),
    Write32(u64, u32),
    /// The value read is that step's result.
    Read32(u64),
    Out8(u16, u8),
    /// Waits for an interrupt with [`VECTOR`].
    Wait,
    /// Counts at an address for ever.
    Spin(u64),
    PowerOff,
}

impl Step {
    fn encode(self) -> (u32, u32, u64) {
        match self {
            Self::Write8(addr, value) => (1, value.into(), addr),
            Self::Write16(addr, value) => (2, value.into(), addr),
            Self::Write32(addr, value) => (3, value, addr),
            Self::Read32(addr) => (4, 0, addr),
            Self::Out8(port, value) => (5, value.into(), port.into()),
            Self::Wait => (6, 0, 0),
            Self::Spin(addr) => (7, 0, addr),
            Self::PowerOff => (0, 0, 0),
        }
    }
}

/// Whether this machine has a KVM; says so where it has none.
pub fn have_kvm() -> bool {
    let have = fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/kvm")
        .is_ok();
    if !have {
        println!("skipped: no usable /dev/kvm here");
    }
    have
}

/// An ELF image with `code` at [`LOAD`], entered there; with `pvh`, by a PVH note.
pub fn elf(code: &[u8], pvh: bool) -> Vec<u8> {
    const HEADERS: u64 = 64 + 2 * 56;
    let mut note = Vec::new();
    for word in [4u32, 4, 18] {
        note.extend(word.to_le_bytes());
    }
    note.extend(b"Xen\0");
    note.extend((LOAD as u32).to_le_bytes());
    let mut out = Vec::new();
    out.extend(b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0");
    for half in [2u16, 62] {
        out.extend(half.to_le_bytes());
    }
    out.extend(1u32.to_le_bytes());
    for word in [LOAD, 64, 0] {
        out.extend(word.to_le_bytes());
    }
    out.extend(0u32.to_le_bytes());
    for half in [64u16, 56, if pvh { 2 } else { 1 }, 64, 0, 0] {
        out.extend(half.to_le_bytes());
    }
    let mut segment = |kind: u32, offset: u64, addr: u64, len: usize| {
        out.extend(kind.to_le_bytes());
        out.extend(7u32.to_le_bytes());
        for word in [offset, addr, addr, len as u64, len as u64, 4] {
            out.extend(word.to_le_bytes());
        }
    };
    segment(1, HEADERS + note.len() as u64, LOAD, code.len());
    segment(4, HEADERS, 0, note.len());
    out.extend(note);
    out.extend(code);
    out
}

/// A machine in the making, with files of its own.
pub struct MicroGuest {
    pub config: VmConfig,
    dir: PathBuf,
}

impl MicroGuest {
    /// A guest that runs `image`, with 128 MiB of memory and its console in a file.
    pub fn new(image: &[u8]) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!(
            "longarm-micro-{}-{}",
            std::process::id(),
            NEXT.fetch_add(1, Ordering::Relaxed)
        );
        let dir = std::env::temp_dir().join(name);
        fs::create_dir_all(&dir).unwrap();
        let kernel = dir.join("kernel");
        fs::write(&kernel, image).unwrap();
        let mut config = VmConfig::new(kernel);
        config.memory = MemoryConfig::parse("128M").unwrap();
        config.serial = Some(SerialConfig::File(dir.join("console")));
        Self { config, dir }
    }

    /// A guest that works through scripts.
    pub fn scripted() -> Self {
        Self::new(&elf(&CODE, false))
    }

    pub fn console(&self) -> String {
        fs::read_to_string(self.dir.join("console")).unwrap()
    }

    pub fn build(&self) -> Machine {
        self.config.validate().unwrap();
        Machine::new(&self.config).unwrap()
    }
}

impl Drop for MicroGuest {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.dir);
    }
}

/// Puts `script` and what it needs into the memory of `machine`, which does not run yet.
pub fn prepare(machine: &Machine, script: &[Step]) {
    let ram = machine.memory();
    let put = |at: u64, value: u64| ram.write_obj(value, GuestAddress(at)).unwrap();
    // A gate for the vector: present, interrupt gate, code selector 0x10 (Intel SDM volume 3, 6.14.1).
    let gate = IDT + 16 * u64::from(VECTOR);
    put(
        gate,
        HANDLER & 0xffff | 0x10 << 16 | 0x8e00 << 32 | (HANDLER >> 16 & 0xffff) << 48,
    );
    put(gate + 8, HANDLER >> 32);
    put(IDT_POINTER, 0xfff | IDT << 16);
    // The boot page tables end at 4 GiB; the 64-bit window begins there.
    put(layout::PML4 + 0x1000 + 8 * 4, WINDOW_DIRECTORY | 3);
    for page in 0..512 {
        let addr = (4 << 30) + page * (2 << 20);
        put(WINDOW_DIRECTORY + 8 * page, addr | 0x83);
    }
    for (i, step) in script.iter().enumerate() {
        let (op, value, addr) = step.encode();
        let at = SCRIPT + 16 * i as u64;
        put(at, u64::from(op) | u64::from(value) << 32);
        put(at + 8, addr);
    }
}

/// What the step `index` of the script read.
pub fn result(machine: &Machine, index: usize) -> u32 {
    let at = SCRIPT + 16 * index as u64 + 4;
    machine.memory().read_obj(GuestAddress(at)).unwrap()
}

/// How long a guest may take; generous for a loaded machine, and for a KVM that interprets.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// Runs `machine` to its end.
pub fn finish(machine: &Machine) -> Outcome {
    machine.resume();
    let outcome = machine.outcome().wait(Some(Instant::now() + PATIENCE));
    machine.end();
    outcome
}
