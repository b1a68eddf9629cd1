//! The interface between a kernel and the machine below it.
//!
//! A kernel is written against the trait [`Machine`] and the few types beside it, so that the same kernel runs on
//! RISC-V (`hal-riscv64`) and, for tests, on the developer's own computer (`hal-host`). The trait has associated
//! functions only: there is exactly one machine below a kernel, and a value that represents it would have to be passed
//! everywhere.
//!
//! The central idea is [`Machine::enter_user`]: *user mode is a call that returns a reason*. A kernel has one stack for
//! each hart; it calls into a program and gets back a [`Trap`] when the program makes a system call, faults or is
//! interrupted. Kernel code itself runs with interrupts off: pending interrupts are found in user mode, in
//! [`Machine::wait_for_interrupt`], and by polling, so no handler ever interrupts kernel code and no lock needs to care
//! about interrupts.
#![no_std]
// The one unsafe item is the declaration of `activate`; there is no unsafe block.
#![deny(unsafe_code)]

mod context;
mod errata;
mod flush;

pub use context::{FloatingPoint, InterruptRegisters, UserContext};
pub use errata::Errata;
pub use flush::{Flush, HartSet, Scope};

/// The largest number of harts that the system supports.
pub const MAXIMUM_HARTS: usize = 8;

/// The size of a page and of a frame, in bytes.
pub const PAGE_SIZE: usize = 4096;

/// A machine below a kernel. All functions concern the calling hart unless they say otherwise.
pub trait Machine {
    /// Returns the dense index of this hart; the hart that booted is 0.
    fn hart() -> usize;

    /// Returns the time since some fixed moment, in ticks of the platform's time base.
    fn now() -> u64;

    /// Arms the timer of this hart: its interrupt becomes pending once [`now`](Machine::now) reaches `deadline_ticks`.
    ///
    /// `u64::MAX` disarms the timer and clears a pending timer interrupt.
    fn set_timer(deadline_ticks: u64);

    /// Sleeps until an interrupt is pending on this hart; returns at once if one is. The interrupt stays pending.
    fn wait_for_interrupt();

    /// Makes an interprocessor interrupt pending on another hart (or on this one). A hart that does not exist is
    /// ignored.
    fn send_ipi(hart: usize);

    /// Runs user code with this context in the active address space until it traps, and returns the reason.
    ///
    /// On return the context holds the state of the program, ready to be entered again here. After a system call `pc`
    /// points behind the instruction; after any other trap it points to the instruction that did not finish. The
    /// floating-point registers may still be in this hart: see [`keep_floating_point`](Machine::keep_floating_point).
    #[must_use]
    fn enter_user(context: &mut UserContext) -> Trap;

    /// Saves the floating-point registers of the program that ran last on this hart, if the hart still has them. Called
    /// before the context is entered on another hart, before another context is entered on this one, and before the
    /// floating-point registers of the context are read, copied or changed.
    fn keep_floating_point(context: &mut UserContext);

    /// Runs user code as [`enter_user`](Machine::enter_user), and keeps its floating-point registers.
    #[must_use]
    #[inline(always)]
    fn enter_user_and_keep(context: &mut UserContext) -> Trap {
        let trap = Self::enter_user(context);
        Self::keep_floating_point(context);
        trap
    }

    /// Invalidates translations, on this hart or on others; returns when all of these harts are done.
    fn flush_tlb(flush: Flush);

    /// Synchronises the instruction fetch of some harts, which may include the calling hart, with every store to memory
    /// that this hart has made or observed; returns when all of them are synchronised. Until then a hart may execute
    /// stale instructions from the same physical address.
    fn synchronise_instructions(harts: HartSet);

    /// Activates the page table whose root frame is `root_ppn`. Costs nothing if the table is active already.
    ///
    /// # Safety
    /// The upper half of the table must map the kernel as [the kernel's own table](Machine::kernel_root_ppn) does, the
    /// table must stay allocated while it is active on any hart, and nothing in its lower half may give user code
    /// access to memory that the kernel uses otherwise.
    #[allow(unsafe_code)]
    unsafe fn activate(root_ppn: u64, asid: u16);

    /// Activates the page table of an address space without an identifier of its own, as
    /// [`activate`](Machine::activate). All such spaces have the identifier 0 in turns, so the hart forgets its
    /// translations of the last one. Costs nothing if the table is active already.
    ///
    /// # Safety
    /// As for [`activate`](Machine::activate).
    #[allow(unsafe_code)]
    unsafe fn activate_without_asid(root_ppn: u64);

    /// Returns the frame number of the root of the kernel's own page table. A new address space copies its upper 256
    /// entries.
    fn kernel_root_ppn() -> u64;

    /// Returns the largest address-space identifier of this machine; 0 if it has no identifiers.
    fn maximum_asid() -> u16;

    /// Returns the address of a physical byte in the kernel's direct map of all memory.
    fn direct_map(physical: u64) -> *mut u8;

    /// Shuts the machine down. The status reaches the process that started it if the machine can pass it on.
    fn shutdown(status: Status) -> !;

    /// Resets the machine, which then starts as after power-on.
    fn restart() -> !;
}

/// Programs that run virtualised, and their guest interrupt files, where harts have any.
pub trait Virtualisation: Machine {
    /// Runs programs virtualised, under the table with this root frame, until [`activate`](Machine::activate) is
    /// called. They access memory through that table as other programs do through theirs, and have supervisor registers
    /// of their own, with which they take their own interrupts. The kernel's own table is active meanwhile. The hart's
    /// cached translations of virtualised programs are invalidated.
    ///
    /// # Safety
    /// As for [`activate`](Machine::activate); the root has four frames, aligned to their size.
    ///
    /// # Panics
    /// If [`guest_files`](Virtualisation::guest_files) is 0.
    #[allow(unsafe_code)]
    unsafe fn activate_virtualised(root_ppn: u64);

    /// As [`activate_virtualised`](Virtualisation::activate_virtualised), with a table of one level more: the first
    /// entry of its root is the root of a table as for [`activate`](Machine::activate), and all others are empty.
    ///
    /// # Safety
    /// As for `activate_virtualised`.
    ///
    /// # Panics
    /// If [`has_four_levels`](Virtualisation::has_four_levels) is `false`.
    #[allow(unsafe_code)]
    unsafe fn activate_virtualised_above(root_ppn: u64);

    /// Returns whether tables for virtualised programs can have one level more than those for other programs.
    fn has_four_levels() -> bool;

    /// Returns the number of guest interrupt files of each hart; 0 if programs cannot run virtualised on this machine.
    fn guest_files() -> usize;

    /// Loads a virtualised program's supervisor registers into the hart before the program is entered, and assigns it a
    /// guest interrupt file of the hart; 0 for none.
    fn load_supervisor(registers: &InterruptRegisters, file: usize);

    /// Saves the supervisor registers of the program that ran last.
    fn save_supervisor(registers: &mut InterruptRegisters);

    /// As [`load_supervisor`](Virtualisation::load_supervisor), and loads only the assignment of the file if the hart
    /// still holds the registers, which [`keep_supervisor`](Virtualisation::keep_supervisor) left there.
    fn resume_supervisor(context: &mut UserContext, file: usize);

    /// Saves the supervisor registers of the program that ran last, with this file, and leaves them in the hart. The
    /// program can be entered at once again, or after
    /// [`resume_supervisor`](Virtualisation::resume_supervisor), on any hart.
    fn keep_supervisor(context: &mut UserContext, file: usize);

    /// Makes the kernel's interrupt pending for the virtualised program whose registers are loaded.
    fn notify_virtualised();

    /// Disables all interrupts of the virtualised program whose registers are loaded, as it can itself: those that are
    /// pending, and those that come, stay pending until it enables them.
    fn disable_supervisor_interrupts();

    /// Clears a guest interrupt file of this hart and enables these identities, all below 64, in it.
    fn prepare_guest_file(file: usize, identities: u64);

    /// Takes the pending identities below 64 out of a guest interrupt file of this hart, and disables it. The caller
    /// makes sure that no store to the file comes meanwhile.
    fn drain_guest_file(file: usize) -> u64;

    /// Takes the pending identities below 64 out of a guest interrupt file of this hart. Identities stored meanwhile
    /// stay pending.
    fn take_guest_file(file: usize) -> u64;

    /// Enables exactly these identities below 64 in a guest interrupt file of this hart; pending identities stay
    /// pending.
    fn enable_guest_file(file: usize, identities: u64);

    /// Makes these guest interrupt files of this hart interrupt the kernel while an interrupt is pending in them: bit
    /// `n` is file `n`.
    fn watch_guest_files(files: u64);

    /// Assigns a guest interrupt file of the hart to the program whose supervisor registers are loaded.
    fn choose_guest_file(file: usize);

    /// Returns the files selected by [`watch_guest_files`](Virtualisation::watch_guest_files).
    fn watched_guest_files() -> u64;

    /// Returns the files of this hart in which an interrupt is pending, watched or not.
    fn pending_guest_files() -> u64;
}

/// Programs that take interrupts in user mode and send them by an instruction, where harts have the N extension and
/// UIPI (boards/uintc/README.md).
///
/// A program that is *armed* owns the registers of the N extension while it is on the hart. No other program sees or
/// changes them.
pub trait UserLevel: Machine {
    /// Loads a program's registers and delegates its interrupts to it. It has no slot and no sender table yet.
    fn arm(registers: &InterruptRegisters);

    /// Saves the registers of the program that is armed, which keeps them in the hart.
    fn save_armed(registers: &mut InterruptRegisters);

    /// Takes the registers, interrupts and rights of the program that is armed from the hart, without saving them. The
    /// caller has made its slot inactive before, so that no other hart raises the interrupt again.
    fn forget_armed();

    /// Saves the registers of the program that is armed, and takes everything from the hart as
    /// [`forget_armed`](UserLevel::forget_armed) does.
    fn disarm(registers: &mut InterruptRegisters) {
        Self::save_armed(registers);
        Self::forget_armed();
    }

    /// Lets the armed program receive in a slot of the controller; `None` for none.
    fn receive_in(slot: Option<u16>);

    /// Lets the armed program send through a table; `None` for none. The machine only reads the table's entries, which
    /// name slots of the controller and never memory.
    fn send_through(table: Option<SenderTable>);

    /// Makes the armed program's software interrupt pending.
    fn raise_user_interrupt();

    /// Disables all interrupts of the armed program, as it can itself: those that are pending, and those that come,
    /// stay pending until it enables them.
    fn disable_user_interrupts();

    /// Returns whether the armed program's software interrupt is pending.
    fn is_user_interrupt_pending() -> bool;

    /// Ends that the armed program's software interrupt is pending. A vector that comes later raises it again.
    fn lower_user_interrupt();
}

/// A sender table: whole pages of memory that no program can write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SenderTable {
    /// Number of its first frame.
    pub first_frame: u64,
    /// Number of frames.
    pub frames: u64,
}

/// An instruction of UIPI that the machine has refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusedUipi {
    /// Sending through the entry whose index is in this register.
    Send {
        /// Number of the register.
        index: usize,
    },
    /// Taking the pending vectors into this register.
    Take {
        /// Number of the register.
        destination: usize,
    },
    /// Adding the vectors in this register to the pending ones.
    Add {
        /// Number of the register.
        vectors: usize,
    },
    /// Making the own slot active or inactive.
    SetActive,
}

/// Exit status of a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// All is well: the emulator exits with 0.
    Success,
    /// Something failed: the emulator exits with this number, which is not 0.
    Failure(u8),
}

/// The reason why user code stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trap {
    /// The program executed `ecall`; number and arguments are in the context, whose `pc` is behind the instruction.
    SystemCall,
    /// The page table forbids an access or maps nothing at the address.
    PageFault {
        /// The accessed address.
        address: u64,
        /// Kind of the access.
        access: Access,
    },
    /// An interrupt is pending; the caller polls the platform to find it.
    Interrupt,
    /// An instruction that the machine does not implement or that the program must not use.
    IllegalInstruction {
        /// The instruction's bits, or 0 if the machine does not report them.
        bits: u64,
    },
    /// The program executed a breakpoint instruction or hit a debug trigger.
    Breakpoint,
    /// An address that is not aligned as the access requires.
    Misaligned {
        /// The accessed address.
        address: u64,
        /// Kind of the access.
        access: Access,
    },
    /// The page table allows the access, but no memory or device answers at the physical address.
    AccessFault {
        /// The accessed address.
        address: u64,
        /// Kind of the access.
        access: Access,
    },
    /// Any other reason, as reported by the machine.
    Other {
        /// The machine's number for the reason.
        cause: u64,
        /// The machine's additional value for the reason.
        value: u64,
    },
}

impl Trap {
    /// Returns the number of `rd` if a program without an interrupt file was about to claim from one with
    /// `csrrw rd, stopei, x0`.
    ///
    /// An interrupt handler may lose its file before it claims, and then the machine does not have the register. The
    /// kernel lets the claim find nothing, 0 in `rd`, and continues behind the instruction. Every other use of the
    /// register remains an illegal instruction: no program is to conclude that an interrupt is pending or that a write
    /// has taken effect.
    pub const fn claim_without_file(self) -> Option<usize> {
        /// `csrrw x0, stopei, x0`.
        const CLAIM: u64 = 0x15c << 20 | 1 << 12 | 0x73;
        const DESTINATION: u64 = 31 << 7;
        match self {
            Trap::IllegalInstruction { bits } if bits & !DESTINATION == CLAIM => Some((bits >> 7 & 31) as usize),
            _ => None,
        }
    }

    /// Returns whether these are the bits of an instruction of UIPI or of another one of its group: custom-3 with the
    /// function 6.
    #[inline(always)]
    pub const fn is_in_group_of_uipi(bits: u64) -> bool {
        bits & (7 << 12 | 0x7f) == 6 << 12 | 0x7b
    }

    /// Returns the instruction if the machine has refused to send or to take interrupts by UIPI. A kernel may act for
    /// it, and continue behind it: its entry is not valid now, or the program has no slot now.
    pub const fn refused_uipi(self) -> Option<RefusedUipi> {
        /// `uipi_send x0` and the others without registers: custom-3 with the function 6, and a number in the upper
        /// bits.
        const SEND: u64 = 6 << 12 | 0x7b;
        const TAKE: u64 = 1 << 25 | SEND;
        const ADD: u64 = 2 << 25 | SEND;
        const ACTIVATE: u64 = 3 << 25 | SEND;
        const DEACTIVATE: u64 = 4 << 25 | SEND;
        const SOURCE: u64 = 31 << 15;
        const DESTINATION: u64 = 31 << 7;
        match self {
            Trap::IllegalInstruction { bits } if bits & !SOURCE == SEND => {
                Some(RefusedUipi::Send { index: (bits >> 15 & 31) as usize })
            }
            Trap::IllegalInstruction { bits } if bits & !DESTINATION == TAKE => {
                Some(RefusedUipi::Take { destination: (bits >> 7 & 31) as usize })
            }
            Trap::IllegalInstruction { bits } if bits & !SOURCE == ADD => {
                Some(RefusedUipi::Add { vectors: (bits >> 15 & 31) as usize })
            }
            Trap::IllegalInstruction { bits: ACTIVATE | DEACTIVATE } => Some(RefusedUipi::SetActive),
            _ => None,
        }
    }
}

/// Kind of a memory access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Load data.
    Read,
    /// Store data.
    Write,
    /// Fetch an instruction.
    Execute,
}

/// Information from the boot code for the kernel; everything else is in the device tree.
#[derive(Clone, Copy, Debug)]
pub struct BootInformation {
    /// The flattened device tree as the firmware left it; empty if there is none.
    pub device_tree: &'static [u8],
    /// The physical address of the device tree.
    pub device_tree_address: u64,
    /// The machine's own number of the hart that booted.
    pub boot_hart_id: u64,
    /// The physical memory of the kernel image: first byte, and first byte behind.
    pub image: (u64, u64),
}

/// Contents of the device tree that the machine's crate needs before it uses memory, devices or other harts. Filled in
/// by the platform.
#[derive(Clone, Copy, Debug)]
pub struct Configuration<'a> {
    /// Physical memory that the kernel may touch: first byte, first byte behind; whole pages, sorted, without overlaps.
    pub memory: &'a [(u64, u64)],
    /// Physical addresses that hold no device registers: all memory, including memory that the firmware keeps for
    /// itself.
    pub not_devices: &'a [(u64, u64)],
    /// The machine's numbers of the harts, in dense order; the hart that booted comes first.
    pub hart_ids: &'a [u64],
    /// Whether every hart has a timer register of its own, so that no firmware call is needed to set the timer.
    pub has_timer_register: bool,
    /// Whether the page tables of every hart can say that memory is a device's (extension Svpbmt).
    pub has_page_types: bool,
    /// Physical address of a "SiFive test" device, through which an emulator exits with a status.
    pub test_device: Option<u64>,
}

/// The interrupts that are pending on a hart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Interrupts {
    /// The deadline of the timer has passed.
    pub timer: bool,
    /// Another hart has sent an interprocessor interrupt.
    pub ipi: bool,
    /// A device interrupt is pending.
    pub external: bool,
    /// An interrupt is pending in a watched guest interrupt file.
    pub guest: bool,
}

impl Interrupts {
    /// Returns whether nothing is pending.
    pub const fn is_empty(self) -> bool {
        !self.timer && !self.ipi && !self.external && !self.guest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn register(bits: u64) -> Option<usize> {
        Trap::IllegalInstruction { bits }.claim_without_file()
    }

    #[test]
    fn a_claim_is_one_instruction_with_any_destination() {
        // As an assembler writes `csrrw t0, 0x15c, zero`.
        assert_eq!(register(0x15c0_12f3), Some(5));
        for destination in 0..32 {
            assert_eq!(register(0x15c0_1073 | destination << 7), Some(destination as usize));
        }
    }

    #[test]
    fn sending_and_taking_are_told_from_all_other_instructions() {
        let refused = |bits| Trap::IllegalInstruction { bits }.refused_uipi();
        // As an assembler writes `.insn r 0x7b, 6, 0, x0, a1, x0` and `.insn r 0x7b, 6, 1, a0, x0, x0`.
        assert_eq!(refused(0x0005_e07b), Some(RefusedUipi::Send { index: 11 }));
        assert_eq!(refused(0x0200_657b), Some(RefusedUipi::Take { destination: 10 }));
        let changed = |bits: u64, field: core::ops::Range<u32>| {
            (0..64).filter(move |bit| !field.contains(bit)).map(move |bit| bits ^ 1 << bit)
        };
        // Every bit counts, but for those of the registers, and those that tell the instructions apart.
        let send = changed(0x0005_e07b, 15..20).filter(|bits| bits ^ 0x0005_e07b != 2 << 25);
        for bits in send.chain(changed(0x0200_657b, 7..12)).chain([0, u64::MAX, 0x15c0_12f3]) {
            assert_eq!(refused(bits), None, "{bits:#x}");
        }
        assert_eq!(refused(2 << 25 | 0x0005_e07b), Some(RefusedUipi::Add { vectors: 11 }));
        for function in [3, 4] {
            assert_eq!(refused(function << 25 | 0x607b), Some(RefusedUipi::SetActive));
            assert_eq!(refused(function << 25 | 0x0005_e07b), None, "it has no operand");
        }
        assert_eq!(refused(5 << 25 | 0x607b), None);
        assert_eq!(Trap::SystemCall.refused_uipi(), None);
        // All of them are in the group, and no bit of it can be another one.
        for bits in [0x0005_e07b, 0x0200_657b, 2 << 25 | 0x0005_e07b, 3 << 25 | 0x607b, 4 << 25 | 0x607b] {
            assert!(Trap::is_in_group_of_uipi(bits));
            for bit in (0..7).chain(12..15) {
                assert!(!Trap::is_in_group_of_uipi(bits ^ 1 << bit), "{bits:#x} {bit}");
            }
        }
    }

    #[test]
    fn other_instructions_are_no_claim() {
        let others = (0..64).filter(|bit| !(7..12).contains(bit)).map(|bit| 0x15c0_12f3 ^ 1 << bit);
        for bits in others.chain([0, u64::MAX]) {
            assert_eq!(register(bits), None, "{bits:#x}");
        }
        assert_eq!(Trap::SystemCall.claim_without_file(), None);
        assert_eq!(Trap::Other { cause: 0x15c0_12f3, value: 0x15c0_12f3 }.claim_without_file(), None);
    }
}
