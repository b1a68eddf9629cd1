//! The callers of a program that a fault ends.
//!
//! [`abi_unix::callers`] describes the line, from which the host makes a backtrace.

use abi_unix::SystemCall;
use abi_unix::call::NUMBER_MASK;
use abi_unix::callers::{SEARCHED, is_return_address, write};
use abi_unix::trace::ProgramName;
use hal_api::{PAGE_SIZE, UserContext};
use memory::sv39::Access;

use crate::process::Process;
use crate::process::worker::Worker;

/// Largest number of words that are compared with the program's calls: a stack can be full of addresses.
const MAXIMUM_LOOKS: usize = 128;
/// Bytes of a word on the stack.
const WORD: usize = size_of::<u64>();

/// Longest text of a line.
const LONGEST: usize = 1200;

/// Prints the candidates for the callers of the program, which was interrupted with these registers.
pub(crate) fn print(process: &Process, context: &UserContext) {
    process.lines.print(format_args!("{}", text(process, context)));
}

/// The occupation of a worker that is asked for its position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Occupation {
    /// It runs the program, or could.
    Run,
    /// It waits in a call.
    Call,
}

/// Prints the position of a worker or thread with these registers, and the candidates for its callers.
pub(crate) fn print_position(worker: &Worker, context: &UserContext, occupation: Occupation) {
    let process = &worker.process;
    let (kind, number) =
        if worker.is_thread() { ("thread", worker.thread_id()) } else { ("worker", worker.index() as u32) };
    let call = match occupation {
        Occupation::Run => None,
        Occupation::Call => SystemCall::from_number(context.call_number() as usize & NUMBER_MASK),
    };
    let text = text(process, context);
    match (occupation, call) {
        (Occupation::Run, _) => process.lines.print(format_args!("{kind} {number} runs: {text}")),
        (Occupation::Call, Some(SystemCall::WorkerWait)) => {
            process.lines.print(format_args!("{kind} {number} sleeps: none of its coroutines is ready"));
        }
        (Occupation::Call, Some(call)) => {
            process.lines.print(format_args!("{kind} {number} waits in {}: {text}", call.name()));
        }
        (Occupation::Call, None) => process.lines.print(format_args!("{kind} {number} waits: {text}")),
    }
}

/// Returns the line with the candidates for the callers.
fn text(process: &Process, context: &UserContext) -> heapless::String<LONGEST> {
    let bias = process.shared.program_bias() as u64;
    let name = ProgramName::from_words(process.name());
    let name = core::str::from_utf8(name.as_bytes()).unwrap_or("?");
    let text = text_of_program(process, context.pc, context.register(1)).unwrap_or(0..0);
    let mut looks = 0;
    let mut read = |address: u64| {
        if looks == MAXIMUM_LOOKS {
            return None;
        }
        looks += 1;
        let mut bytes = [0; 4];
        process.copy_in(address as usize, &mut bytes).ok().map(|()| bytes)
    };
    let mut candidates = words_above(process, context.stack() as usize)
        .filter(|&(_, word)| is_return_address(word, &text, &mut read))
        .map(|(offset, word)| (offset, word.wrapping_sub(bias)));
    let of_file = |address: u64| address.wrapping_sub(bias);
    let mut line = heapless::String::new();
    // A line without room for all of them has the innermost.
    let _ = write(&mut line, name, of_file(context.pc), of_file(context.register(1)), &mut candidates);
    line
}

/// Returns the addresses of the code to which the program counter belongs or, after a jump to nowhere, the return
/// address.
fn text_of_program(process: &Process, pc: u64, ra: u64) -> Option<core::ops::Range<u64>> {
    let space = process.space().lock();
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

#[cfg(test)]
mod tests {
    use std::string::String;
    use std::vec::Vec;

    use abi_unix::SystemCall;
    use abi_unix::callers::Callers;

    use super::*;
    use crate::testing::{DATA, Program, run};

    const READ_WRITE: usize = 3;
    const READ_EXECUTE: usize = 5;

    /// Maps private memory and fills its beginning.
    fn map(program: &mut Program, pages: usize, bytes: &[u8], protection: usize) -> u64 {
        let length = pages * PAGE_SIZE;
        let start = program.call(SystemCall::Map, [0, length, READ_WRITE, 0x22, usize::MAX, 0]).unwrap();
        program.write(start, bytes);
        program.call(SystemCall::Protect, [start, length, protection]).unwrap();
        start as u64
    }

    /// Returns the candidates in the line of a program with these registers, by their distances.
    fn candidates(program: &Program, pc: u64, ra: u64, stack: u64) -> Vec<u64> {
        let mut context = UserContext::new(pc, stack);
        context.set_register(1, ra);
        let process = program.process();
        print(&process, &context);
        let output: String = crate::testing::simulation().output();
        let callers = Callers::parse(output.lines().last().unwrap()).unwrap();
        let bias = process.shared.program_bias() as u64;
        assert_eq!((callers.pc, callers.ra), (pc.wrapping_sub(bias), ra.wrapping_sub(bias)));
        callers.candidates().map(|(offset, _)| offset).collect()
    }

    #[test]
    fn words_behind_calls_are_candidates_and_others_are_not() {
        run(|program| {
            let call = 0x0000_00efu32.to_le_bytes();
            let other = 0x0000_0013u32.to_le_bytes();
            let text = map(program, 1, &[call, other, call].concat(), READ_EXECUTE);
            let end = text + PAGE_SIZE as u64;
            let words = [1, text + 4, text + 8, text, text + 12, end, u64::MAX, text + 4];
            let bytes: Vec<u8> = words.into_iter().flat_map(u64::to_le_bytes).collect();
            program.write(DATA + 8, &bytes);
            let stack = DATA as u64 + 8;
            assert_eq!(candidates(program, text, 0, stack), [8, 32, 56]);
            // After a jump to nowhere, the return address tells the program's code.
            assert_eq!(candidates(program, 8, text + 4, stack), [8, 32, 56]);
            assert_eq!(candidates(program, 8, 16, stack), []);
        });
    }

    #[test]
    fn stacks_that_cannot_be_read_have_no_candidates() {
        run(|program| {
            let text = map(program, 1, &0x0000_00efu32.to_le_bytes(), READ_EXECUTE);
            let word = (text + 4).to_le_bytes();
            let stack = map(program, 2, &word, READ_WRITE);
            program.call(SystemCall::Unmap, [stack as usize + PAGE_SIZE, PAGE_SIZE]).unwrap();
            program.write(stack as usize + PAGE_SIZE - 8, &word);
            // The end of a stack, and a pointer in the guard below it.
            assert_eq!(candidates(program, text, 0, stack + PAGE_SIZE as u64 - 16), [8]);
            program.call(SystemCall::Protect, [DATA, PAGE_SIZE, 0]).unwrap();
            program.write(DATA + PAGE_SIZE, &word);
            assert_eq!(candidates(program, text, 0, (DATA + PAGE_SIZE) as u64 - 24), [24]);
            for stack in [0, stack + 1, u64::MAX - 7, u64::MAX, 1 << 40, 1 << 63] {
                assert_eq!(candidates(program, text, 0, stack), [], "{stack:#x}");
            }
        });
    }

    #[test]
    fn a_stack_full_of_addresses_gives_a_line_of_limited_length() {
        run(|program| {
            let text = map(program, 1, &0x0000_00efu32.to_le_bytes(), READ_EXECUTE);
            let stack = map(program, 4, &(text + 4).to_le_bytes().repeat(2048), READ_WRITE);
            let found = candidates(program, text, 0, stack);
            assert!(found.len() > 20 && found.iter().zip(0..).all(|(offset, at)| *offset == at * 8), "{found:?}");
        });
    }
}
