//! Machines that run a few instructions: boot protocols, ways to end, pause, PCI, MSI-X and notifications, by KVM itself.

mod micro;

use std::thread::sleep;
use std::time::{Duration, Instant};

use arch::x86_64::layout::ECAM;
use micro::{
    MicroGuest, PATIENCE, PVH_CODE, SCRATCH, Step, VECTOR, elf, finish, have_kvm, prepare, result,
};
use vm_memory::{Bytes, GuestAddress};
use vmm::outcome::Outcome;

/// Whether `done` comes to hold.
fn within_patience(mut done: impl FnMut() -> bool) -> bool {
    let end = Instant::now() + PATIENCE;
    while !done() {
        if Instant::now() > end {
            return false;
        }
        sleep(Duration::from_millis(10));
    }
    true
}

fn run(script: &[Step]) -> (MicroGuest, Outcome) {
    let guest = MicroGuest::scripted();
    let machine = guest.build();
    prepare(&machine, script);
    let outcome = finish(&machine);
    drop(machine);
    (guest, outcome)
}

#[test]
fn an_elf_is_entered_in_64_bit_mode_prints_and_powers_off() {
    if !have_kvm() {
        return;
    }
    let mut script: Vec<_> = b"hello\n".map(|b| Step::Out8(0x3f8, b)).into();
    script.push(Step::PowerOff);
    let (guest, outcome) = run(&script);
    assert_eq!(outcome, Outcome::PowerOff);
    assert_eq!(guest.console(), "hello\n");
}

#[test]
fn an_elf_with_a_pvh_note_is_entered_with_start_info() {
    if !have_kvm() {
        return;
    }
    let guest = MicroGuest::new(&elf(&PVH_CODE, true));
    let machine = guest.build();
    assert_eq!(finish(&machine), Outcome::PowerOff);
    drop(machine);
    assert_eq!(guest.console(), "P\n");
}

#[test]
fn each_way_to_end_is_told_apart() {
    if !have_kvm() {
        return;
    }
    // The ACPI reset register, and the keyboard controller.
    for (port, value) in [(0x602, 1), (0x64, 0xfe)] {
        let (_, outcome) = run(&[Step::Out8(port, value), Step::Spin(SCRATCH)]);
        assert_eq!(outcome, Outcome::Reset, "{port:#x}");
    }
    // An invalid opcode without an interrupt table: triple fault.
    let guest = MicroGuest::new(&elf(&[0x0f, 0x0b], false));
    assert_eq!(finish(&guest.build()), Outcome::Reset);
}

#[test]
fn a_paused_guest_stands_still_and_goes_on() {
    if !have_kvm() {
        return;
    }
    let guest = MicroGuest::scripted();
    let machine = guest.build();
    prepare(&machine, &[Step::Spin(SCRATCH)]);
    let count = || {
        machine
            .memory()
            .read_obj::<u32>(GuestAddress(SCRATCH))
            .unwrap()
    };
    let moves = || {
        let before = count();
        within_patience(|| count() != before)
    };
    machine.resume();
    assert!(moves());
    for _ in 0..5 {
        machine.pause();
        let held = count();
        sleep(Duration::from_millis(30));
        assert_eq!(count(), held);
        machine.resume();
        assert!(moves());
    }
    machine.end();
}

/// 16-bit code of an application processor: counts itself at `APS + 0x100`, and halts.
const AP_CODE: [u8; 11] = [
    0xf0, 0x2e, 0x66, 0xff, 0x06, 0x00, 0x01, 0xfa, 0xf4, 0xeb, 0xfd,
];
/// Where it lies; start-up IPIs name the page.
const APS: u64 = 0x3_0000;

#[test]
fn thirty_two_vcpus_start_when_the_first_calls_them() {
    if !have_kvm() {
        return;
    }
    let mut guest = MicroGuest::scripted();
    guest.config.cpus = 32;
    let machine = guest.build();
    let ram = machine.memory();
    ram.write_slice(&AP_CODE, GuestAddress(APS)).unwrap();
    // Local APIC on; INIT and start-up to all others (Intel SDM volume 3, 11.6.1).
    let script = [
        Step::Write32(0xfee0_00f0, 0x1ff),
        Step::Write32(0xfee0_0300, 0xc_4500),
        Step::Write32(0xfee0_0300, 0xc_4600 | (APS >> 12) as u32),
        Step::Spin(SCRATCH),
    ];
    prepare(&machine, &script);
    machine.resume();
    let started = || {
        let count = GuestAddress(APS + 0x100);
        ram.read_obj::<u32>(count).unwrap()
    };
    let all = within_patience(|| started() == 31);
    assert!(all, "{} of 31 started", started());
    machine.end();
}

#[test]
fn ecam_shows_the_bridge_and_nothing_in_an_empty_slot() {
    if !have_kvm() {
        return;
    }
    let guest = MicroGuest::scripted();
    let machine = guest.build();
    let script = [
        Step::Read32(ECAM.base),
        Step::Read32(ECAM.base + (31 << 15)),
        Step::PowerOff,
    ];
    prepare(&machine, &script);
    assert_eq!(finish(&machine), Outcome::PowerOff);
    assert_eq!(result(&machine, 0), 0x0008_1b36);
    assert_eq!(result(&machine, 1), u32::MAX, "an empty slot");
}

/// Configuration space of `slot`, by a guest's reads.
fn config_space(slot: u64) -> Vec<u8> {
    let guest = MicroGuest::scripted();
    let machine = guest.build();
    let mut script: Vec<_> = (0..64)
        .map(|i| Step::Read32(ECAM.base + (slot << 15) + 4 * i))
        .collect();
    script.push(Step::PowerOff);
    prepare(&machine, &script);
    assert_eq!(finish(&machine), Outcome::PowerOff);
    (0..64)
        .flat_map(|i| result(&machine, i).to_le_bytes())
        .collect()
}

/// The slot of the entropy device in a machine without disks: after the bridge and pvpanic.
const RNG_SLOT: u64 = 2;

#[test]
fn a_virtio_device_is_driven_by_notification_and_answers_by_msi_x() {
    if !have_kvm() {
        return;
    }
    let space = config_space(RNG_SLOT);
    assert_eq!(
        space[..4],
        [0xf4, 0x1a, 0x44, 0x10],
        "virtio-rng is 1af4:1044"
    );
    let mut cap = space[0x34];
    while space[cap as usize] != 0x11 {
        cap = space[cap as usize + 1];
        assert_ne!(cap, 0, "MSI-X capability");
    }
    let bar = u64::from_le_bytes(space[0x10..0x18].try_into().unwrap()) & !0xf;
    assert!((4 << 30..5 << 30).contains(&bar), "{bar:#x}");

    const LEN: u32 = 64;
    let (desc, avail, used, buffer) = (
        SCRATCH,
        SCRATCH + 0x1000,
        SCRATCH + 0x2000,
        SCRATCH + 0x3000,
    );
    let config = ECAM.base + (RNG_SLOT << 15);
    let entry = bar + 0x8000 + 16;
    let queue = |at: u64, addr: u64| Step::Write32(bar + at, addr as u32);
    let script = [
        // Local APIC on; memory space and bus master on; MSI-X on.
        Step::Write32(0xfee0_00f0, 0x1ff),
        Step::Write16(config + 4, 6),
        Step::Write16(config + u64::from(cap) + 2, 1 << 15),
        // Vector 1.
        Step::Write32(entry, 0xfee0_0000),
        Step::Write32(entry + 4, 0),
        Step::Write32(entry + 8, VECTOR),
        Step::Write32(entry + 12, 0),
        // Reset, acknowledge, driver, VERSION_1, FEATURES_OK.
        Step::Write8(bar + 0x14, 0),
        Step::Write8(bar + 0x14, 3),
        Step::Write32(bar + 0x08, 1),
        Step::Write32(bar + 0x0c, 1),
        Step::Write8(bar + 0x14, 0xb),
        // Queue 0: 8 entries, vector 1.
        Step::Write16(bar + 0x16, 0),
        Step::Write16(bar + 0x18, 8),
        Step::Write16(bar + 0x1a, 1),
        queue(0x20, desc),
        queue(0x24, 0),
        queue(0x28, avail),
        queue(0x2c, 0),
        queue(0x30, used),
        queue(0x34, 0),
        Step::Write16(bar + 0x1c, 1),
        Step::Write8(bar + 0x14, 0xf),
        // Notify, and wait for the answer.
        Step::Write16(bar + 0x3000, 0),
        Step::Wait,
        Step::PowerOff,
    ];
    let guest = MicroGuest::scripted();
    let machine = guest.build();
    prepare(&machine, &script);
    let ram = machine.memory();
    let put = |at: u64, value: u64| ram.write_obj(value, GuestAddress(at)).unwrap();
    // One descriptor, device-writable; one entry available.
    put(desc, buffer);
    put(desc + 8, u64::from(LEN) | 2 << 32);
    put(avail, 1 << 16);
    assert_eq!(finish(&machine), Outcome::PowerOff);
    let used: [u32; 3] = [0, 4, 8].map(|o| ram.read_obj(GuestAddress(used + o)).unwrap());
    assert_eq!(used, [1 << 16, 0, LEN], "one buffer used, whole");
    let mut random = [0; LEN as usize];
    ram.read_slice(&mut random, GuestAddress(buffer)).unwrap();
    assert!(random.iter().any(|b| *b != 0));
}
