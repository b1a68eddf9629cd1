//! The microkernel's figures, with seL4's beside them.
//!
//! The root task `micro-bench` counts instructions as seL4's own benchmarks do. seL4's figures are those of its release
//! build (version 15.0.0, one hart, without the MCS extension) for the same machine, counted by the same emulator, with
//! the PLIC, because it supports no other controller. User interrupts without the kernel are measured on the machines
//! that have them.

use std::path::Path;

use anyhow::{Context as _, Result, bail};
use object::elf;
use object::read::elf::{ElfFile64, ProgramHeader};

use crate::bench::{Goal, collect};
use crate::board::{Clock, Variant};
use crate::build::{Harts, Variation};
use crate::cli;
use crate::context::Context;
use crate::emulator;
use crate::guest::{Echo, Guest};

/// The root task that measures.
const PROGRAM: &str = "micro-bench";
/// The machines whose back ends of user interrupts the older machine lacks, with the ends of the figures' names.
const BACK_ENDS: [(Variant, &str); 2] = [(Variant::Aia, "-imsic"), (Variant::Uintc, "-uintc")];

/// seL4's figure for each of ours, and the largest good multiple: 1 for the fast paths, 1.2 for all others. Words in
/// registers cost seL4 nothing extra. It has no figure of its own for unmapping, which is compared with mapping, nor
/// for a call that makes many pages.
pub const SEL4: &[(&str, f64, f64)] = &[
    ("null-call", 123.0, 1.2),
    ("ipc-call-1-0", 249.0, 1.0),
    ("ipc-reply-1-0", 289.0, 1.0),
    ("ipc-call-1-4", 249.0, 1.0),
    ("ipc-reply-1-4", 289.0, 1.0),
    ("ipc-call-2-0", 249.0, 1.0),
    ("ipc-reply-2-0", 289.0, 1.0),
    ("ipc-call-2-4", 249.0, 1.0),
    ("ipc-reply-2-4", 289.0, 1.0),
    ("signal-to-less-important", 468.0, 1.2),
    ("signal-to-more-important", 651.0, 1.2),
    ("switch", 511.0, 1.2),
    ("fault", 929.0, 1.2),
    ("fault-reply", 797.0, 1.2),
    ("fault-round-trip", 1727.0, 1.2),
    ("retype-page", 790.0, 1.2),
    ("retype-64-pages", 64.0 * 790.0, 1.2),
    ("page-map", 589.0, 1.2),
    ("page-protect", 584.0, 1.2),
    ("page-unmap", 589.0, 1.2),
    ("interrupt", 417.0, 1.2),
];

/// Bytes of seL4's kernel: instructions and constants; and writable data with its boot code and its initial memory. Of
/// its release build for one hart by GCC 12.
const SEL4_SIZES: (u64, u64) = (38_930, 30_184);

/// The goals that follow from these figures.
pub const GOALS: &[Goal] = &{
    let mut goals = [("", 0.0); SEL4.len()];
    let mut index = 0;
    while index < SEL4.len() {
        let (id, figure, times) = SEL4[index];
        goals[index] = (id, figure * times);
        index += 1;
    }
    goals
};

/// Boots the microkernel with the measuring program, counting instructions, and collects its lines.
///
/// # Errors
///
/// The build fails, or the machine does not come to its end.
pub fn measure(context: &Context) -> Result<(Vec<String>, String)> {
    let (toolchain, mut products) = context.build_microkernel(Variation::new(Harts::One))?;
    products.initramfs = context.workspace.products().join(PROGRAM);
    let on = |variant, log: &str| -> Result<_> {
        let machine = cli::Machine { harts: Some(1), memory: None, machine: Some(variant), user_interrupts: None };
        let mut configuration = context.configuration(&products, &machine, String::new());
        configuration.clock = Clock::Instructions;
        let activity = context.progress.start("Measuring the microkernel");
        let log = context.log(log);
        let mut guest = Guest::start(&toolchain.qemu, &context.board, &configuration, &log, Echo::LogOnly)?;
        let lines = collect(&mut guest, &activity);
        activity.clear();
        Ok((lines?, toolchain.describe(&context.board, &configuration)))
    };
    let (mut lines, mut machines) = on(Variant::Plic, PROGRAM)?;
    for (variant, end) in BACK_ENDS {
        if emulator::is_there(context, variant, &toolchain) {
            let (more, machine) = on(variant, &format!("{PROGRAM}-{variant}"))?;
            machines = format!("{machines}; {machine}");
            lines.extend(more.into_iter().filter(|line| line.contains(end)));
        }
    }
    let sel4 = SEL4.iter().map(|(id, figure, _)| (format!("sel4-{id}"), *figure, "instructions"));
    let (code, data) = sizes(&products.kernel)?;
    let (sel4_code, sel4_data) = SEL4_SIZES;
    let sizes = [
        ("kernel-code", code),
        ("kernel-data", data),
        ("sel4-kernel-code", sel4_code),
        ("sel4-kernel-data", sel4_data),
    ]
    .map(|(id, size)| (id.to_string(), size as f64, "bytes"));
    lines.extend(
        sel4.chain(sizes)
            .map(|(id, value, unit)| serde_json::json!({ "id": id, "value": value, "unit": unit }).to_string()),
    );
    Ok((lines, machines))
}

/// Returns the bytes of instructions and constants in a kernel's file, and the memory of its writable data.
fn sizes(kernel: &Path) -> Result<(u64, u64)> {
    let content = std::fs::read(kernel).with_context(|| format!("cannot read {}", kernel.display()))?;
    let file: ElfFile64<'_, object::LittleEndian> = ElfFile64::parse(&*content).context("the kernel is no ELF file")?;
    let endian = file.endian();
    let (mut code, mut data) = (0, 0);
    for segment in file.elf_program_headers().iter().filter(|segment| segment.p_type(endian) == elf::PT_LOAD) {
        match segment.p_flags(endian).0 & elf::PF_W.0 {
            0 => code += segment.p_memsz(endian),
            _ => data += segment.p_memsz(endian),
        }
    }
    if code == 0 {
        bail!("{} has no code", kernel.display());
    }
    Ok((code, data))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn goals_follow_from_the_peers_figures() {
        assert_eq!(GOALS.len(), SEL4.len());
        assert!(GOALS.contains(&("ipc-call-1-0", 249.0)) && GOALS.contains(&("switch", 511.0 * 1.2)));
        assert!(SEL4.iter().all(|(id, figure, times)| !id.is_empty() && *figure > 0.0 && *times >= 1.0));
    }
}
