//! The callers of a program that a fault ends.
//!
//! [`abi_unix::callers`] describes the line, from which the host makes a backtrace.

use abi_unix::callers::{SEARCHED, is_call, write};
use hal_api::{PAGE_SIZE, UserContext};
use memory::sv39::Access;

use crate::process::Process;

/// Largest number of words that are compared with the program's calls: a stack can be full of addresses.
const MAXIMUM_LOOKS: usize = 128;
/// Bytes of a word on the stack.
const WORD: usize = size_of::<u64>();

/// Prints the candidates for the callers of the program, which was interrupted with these registers.
pub(crate) fn print(process: &Process, context: &UserContext) {
    let bias = process.shared.program_bias() as u64;
    let name: [[u8; WORD]; 2] = process.name().map(u64::to_le_bytes);
    let name = name.as_flattened();
    let length = name.iter().position(|byte| *byte == 0).unwrap_or(name.len());
    let name = core::str::from_utf8(&name[..length]).unwrap_or("?");
    let text = text_of_program(process, context.pc, context.register(1)).unwrap_or(0..0);
    let mut looks = 0;
    let mut is_return_address = |address: u64| {
        // A call is not the program's last instruction, and not its first.
        if !text.contains(&address) || address - text.start < 4 || looks == MAXIMUM_LOOKS {
            return false;
        }
        looks += 1;
        let mut before = [0; 4];
        process.copy_in(address as usize - 4, &mut before).is_ok() && is_call(before)
    };
    let mut candidates = words_above(process, context.stack() as usize)
        .filter(|&(_, word)| is_return_address(word))
        .map(|(offset, word)| (offset, word.wrapping_sub(bias)));
    let of_file = |address: u64| address.wrapping_sub(bias);
    let mut line = heapless::String::<1200>::new();
    // A line without room for all of them has the innermost.
    let _ = write(&mut line, name, of_file(context.pc), of_file(context.register(1)), &mut candidates);
    process.lines.print(format_args!("{line}"));
}

/// Returns the addresses of the code to which the program counter belongs or, after a jump to nowhere, the return
/// address.
fn text_of_program(process: &Process, pc: u64, ra: u64) -> Option<core::ops::Range<u64>> {
    let space = process.space.lock();
    let code = |address| space.region_at(address).filter(|region| region.protection.allows(Access::Execute));
    code(pc).filter(|_| !process.shared.is_in_image(pc as usize)).or_else(|| code(ra)).map(|region| region.range)
}

/// Returns the words above an address that can be read, with their distances from it. After an overflow, the stack
/// pointer lies in the guard below the stack.
fn words_above(process: &Process, start: usize) -> impl Iterator<Item = (usize, u64)> {
    let mut chunk = [0; 512];
    // Addresses of the chunk.
    let mut range = 0..0;
    let mut next = start;
    core::iter::from_fn(move || {
        while next.is_multiple_of(WORD) && next - start < SEARCHED {
            if !range.contains(&next) {
                // Up to the end of a page: the next one may not be there.
                let page = (next + 1).checked_next_multiple_of(PAGE_SIZE)?;
                let end = page.min(next + chunk.len());
                if process.copy_in(next, &mut chunk[..end - next]).is_err() {
                    next = page;
                    continue;
                }
                range = next..end;
            }
            let at = next - range.start;
            let word = u64::from_le_bytes(chunk[at..at + WORD].try_into().ok()?);
            let offset = next - start;
            next += WORD;
            return Some((offset, word));
        }
        None
    })
}
