//! Isolation of the machine from programs, in user mode and in VS-mode, where a program has supervisor registers of its
//! own.
//!
//! In VS-mode more instructions are allowed than in user mode. The tests list the instructions that are refused in
//! both, and check that the effects of allowed ones do not reach other processes: neither harm nor a bit of
//! information.

use abi_unix::types::signal;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::arch::asm;

use cops::process::{Command, Ending};

use crate::harness::{OWN_PATH, Outcome, ending_of_act, wait};
use crate::{check, check_eq, must};

/// Instructions that are forbidden to programs, by name, each as a function that tries.
macro_rules! forbidden {
    ($($name:literal: $($instruction:literal),+;)*) => {
        const FORBIDDEN: &[(&str, fn())] = &[$((
            $name,
            || {
                // SAFETY: the process ends here, as the test intends. If it does not, it continues with registers that
                // are declared as changed.
                unsafe { asm!($($instruction),+, inout("a0") 0usize => _, options(nostack)) };
            },
        ),)*];
    };
}

forbidden! {
    "reading hstatus": "csrr a0, 0x600";
    "writing hstatus": "csrw 0x600, a0";
    "writing hedeleg": "csrw 0x602, a0";
    "writing hideleg": "csrw 0x603, a0";
    "writing hie": "csrw 0x604, a0";
    "writing hcounteren": "csrw 0x606, a0";
    "writing hgeie": "csrw 0x607, a0";
    "writing htimedelta": "csrw 0x605, a0";
    "writing hvien": "csrw 0x608, a0";
    "writing hvictl": "csrw 0x609, a0";
    "writing henvcfg": "csrw 0x60a, a0";
    "writing hip": "csrw 0x644, a0";
    "writing hvip": "csrw 0x645, a0";
    "writing hviprio1": "csrw 0x646, a0";
    "reading hgatp": "csrr a0, 0x680";
    "writing hgatp": "csrw 0x680, a0";
    "reading hgeip": "csrr a0, 0xe12";
    "reading vsstatus": "csrr a0, 0x200";
    "writing vsie": "csrw 0x204, a0";
    "writing vstvec": "csrw 0x205, a0";
    "writing vsepc": "csrw 0x241, a0";
    "writing vstimecmp": "csrw 0x24d, a0";
    "writing vsiselect": "csrw 0x250, a0";
    "writing vsireg": "csrw 0x251, a0";
    "reading vstopei": "csrr a0, 0x25c";
    "reading vsatp": "csrr a0, 0x280";
    "writing vsatp": "csrw 0x280, a0";
    "reading mstatus": "csrr a0, mstatus";
    "writing mtvec": "csrw mtvec, a0";
    "writing mideleg": "csrw mideleg, a0";
    "writing mie": "csrw mie, a0";
    "reading mhartid": "csrr a0, mhartid";
    "writing pmpcfg0": "csrw pmpcfg0, a0";
    "writing menvcfg": "csrw 0x30a, a0";
    "writing tselect": "csrw 0x7a0, a0";
    "writing time": "csrw time, a0";
    "sfence.vma": "sfence.vma";
    "hfence.vvma": ".insn r 0x73, 0, 0x11, x0, x0, x0";
    "hfence.gvma": ".insn r 0x73, 0, 0x31, x0, x0, x0";
    "hlv.d": ".insn r 0x73, 4, 0x36, a0, a0, x0";
    "hsv.d": ".insn r 0x73, 4, 0x37, x0, a0, a0";
    "wfi": "wfi";
    "mret": "mret";
    "writing sideleg": "csrw 0x103, a0";
    "reading suist": "csrr a0, 0x1b0";
    "writing suist": "csrw 0x1b0, a0";
    "writing suirs": "csrw 0x1b1, a0";
    "writing suicfg": "csrw 0x1b2, a0";
}

/// An act: tries the instruction of this number.
pub fn try_instruction(argument: Option<&str>) -> i32 {
    let number = argument.and_then(|text| text.parse::<usize>().ok());
    match number.and_then(|number| FORBIDDEN.get(number)) {
        Some((_, attempt)) => attempt(),
        None => return 1,
    }
    0
}

pub async fn privileged_instructions_end_a_program() -> Outcome {
    for (number, (name, _)) in FORBIDDEN.iter().enumerate() {
        let command = Command::new(OWN_PATH).argument("--act").argument("privileged-instruction");
        let child = must!(command.argument(&number.to_string()).spawn());
        let ending = wait(&child).await;
        check!(ending == Some(Ok(Ending::Killed(signal::ILL as u8))), "{name}: {ending:?}");
    }
    Ok(())
}

/// A page table of one page, whose entries translate the lower half of a program to itself.
#[repr(C, align(4096))]
struct Table([u64; 512]);

/// An act: enables a translation of its own, which must be refused or affect only itself.
pub fn translate_for_itself() -> i32 {
    // Valid, read, write, execute, accessed, dirty; not for users, since it is to be the supervisor's.
    const LEAF: u64 = 0b1100_1111;
    let mut table = alloc::boxed::Box::new(Table([0; 512]));
    for (gigabyte, entry) in table.0.iter_mut().enumerate().take(256) {
        *entry = (gigabyte as u64) << 28 | LEAF;
    }
    let own = 8 << 60 | (&raw const *table as u64) >> 12;
    // SAFETY: every address keeps its meaning.
    unsafe { asm!("csrw satp, {}", in(reg) own) };
    // The kernel's memory is as unreachable as before: the kernel finds no page, and ends this process.
    let kernel = 0xffff_ffc0_8020_0000 as *const u64;
    for _ in 0..1000 {
        core::hint::spin_loop();
    }
    // SAFETY: the process ends here.
    unsafe { kernel.read_volatile() };
    0
}

pub async fn a_forged_translation_has_no_effect() -> Outcome {
    for _ in 0..8 {
        // Refused at once, or at the first fault in it; or its translation was gone after a context switch.
        let ending = ending_of_act("own-translation").await?;
        check!([signal::ILL, signal::SEGV].map(|signal| Ending::Killed(signal as u8)).contains(&ending), "{ending:?}");
    }
    Ok(())
}

/// Supervisor registers that a program in VS-mode may have as its own, with their initial values: those that could
/// carry information from one process to another. (`sstatus`, `sip`, `sie` and `stvec` are the runtime's.)
macro_rules! handed_over {
    ($fill:ident, $changed:ident: $($name:ident $number:literal $first:literal;)*) => {
        fn $fill() {
            // SAFETY: none of them affects the program; the process ends after it.
            $(unsafe { asm!(concat!("csrw ", $number, ", {}"), in(reg) 0x5a5a_5a5cu64, options(nostack)) };)*
        }

        fn $changed() -> Vec<String> {
            let mut changed = Vec::new();
            $({
                let value: u64;
                // SAFETY: reads a register.
                unsafe { asm!(concat!("csrr {}, ", $number), out(reg) value, options(nostack)) };
                if value != $first {
                    changed.push(format!("{} is {value:#x}", stringify!($name)));
                }
            })*
            changed
        }
    };
}

handed_over! {
    fill_registers, changed_registers:
    scounteren "0x106" 7;
    senvcfg "0x10a" 0;
    sepc "0x141" 0;
    scause "0x142" 0;
    stval "0x143" 0;
    siselect "0x150" 0;
}

// Those of a program in user mode that takes its own interrupts (back end `uintc`).
handed_over! {
    fill_user_registers, changed_user_registers:
    uscratch "0x040" 0;
    uepc "0x041" 0;
    ucause "0x042" 0;
    utval "0x043" 0;
}

/// An act: leaves a value in each register.
pub fn leave_registers() -> i32 {
    let fill = if cops::system::interrupt::has_slots() { fill_user_registers } else { fill_registers };
    for _ in 0..100 {
        fill();
        cops::system::worker::yield_now();
    }
    fill();
    cops::system::process::exit(0)
}

/// An act: returns 0 if the registers have their initial values.
pub fn find_registers() -> i32 {
    let has_slots = cops::system::interrupt::has_slots();
    let changed = if has_slots { changed_user_registers() } else { changed_registers() };
    for change in &changed {
        cops::eprintln!("{change}");
    }
    i32::from(!changed.is_empty())
}

pub async fn registers_are_not_handed_on() -> Outcome {
    if !cops::system::interrupt::is_in_hardware() {
        // User mode has none of them.
        check_eq!(ending_of_act("leave-registers").await?, Ending::Killed(signal::ILL as u8));
        return Ok(());
    }
    for _ in 0..10 {
        let leaves = must!(Command::new(OWN_PATH).argument("--act").argument("leave-registers").spawn());
        check_eq!(ending_of_act("find-registers").await?, Ending::Exited(0));
        check_eq!(wait(&leaves).await, Some(Ok(Ending::Exited(0))));
        check_eq!(ending_of_act("find-registers").await?, Ending::Exited(0));
    }
    Ok(())
}

/// An act: enters VU-mode and makes calls from there. (After its next context switch it is in VS-mode again.)
pub fn lower_privilege() -> i32 {
    if !cops::system::interrupt::is_virtualised() {
        return 0;
    }
    // SAFETY: the code continues behind `sret`, without supervisor registers, which no later code needs; interrupts are
    // off.
    unsafe {
        asm!(
            "csrw sie, zero",
            "li {0}, 0x122",
            "csrc sstatus, {0}",
            "la {0}, 2f",
            "csrw sepc, {0}",
            "sret",
            "2:",
            out(reg) _,
            options(nostack),
        );
    }
    for _ in 0..100 {
        cops::system::worker::yield_now();
    }
    0
}

pub async fn less_privilege_is_allowed() -> Outcome {
    for _ in 0..5 {
        check_eq!(ending_of_act("lower-privilege").await?, Ending::Exited(0));
    }
    Ok(())
}
