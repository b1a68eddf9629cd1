//! The layout of a process's memory: randomised, with a guard below the stack, and without a trace of the kernel's
//! addresses.

use abi_unix::authority::Held;
use abi_unix::trace::{HART_WORDS, PROCESS_WORDS};
use abi_unix::types::{auxiliary, mapping, protection};
use abi_unix::{Counter, Errno};
use alloc::string::String;
use alloc::vec::Vec;
use cops::process::{Command, Ending};
use cops::system::{self, authority};

use crate::harness::{self, Outcome, told};
use crate::{check, check_eq, must};

const PAGE: usize = 4096;
/// Bytes of the guard below the first stack, and of the stack.
const GUARD: usize = 1 << 20;
const STACK: usize = 8 << 20;

/// Returns addresses of this process: of an `mmap`, the stack, the start of `brk`, the scheduler's image, the process
/// page, the program's text.
fn addresses() -> Result<[usize; 6], Errno> {
    let local = 0u8;
    let mapped = system::memory::map(PAGE)? as usize;
    // SAFETY: the call only queries.
    let end = unsafe { system::memory::set_break(0) };
    // The runtime's coroutines are polled on the first worker's stack, near whose top the arguments lie.
    let stack = core::hint::black_box(&raw const local) as usize / PAGE;
    let text = stack_top as *const () as usize;
    Ok([mapped, stack, end, told(auxiliary::SYSINFO_EHDR), told(auxiliary::COPS_PROCESS_PAGE), text])
}

/// An act: prints the addresses of its process.
pub fn tell() -> i32 {
    match addresses() {
        Ok(addresses) => {
            addresses.iter().for_each(|address| cops::println!("{address}"));
            0
        }
        Err(_) => 1,
    }
}

async fn addresses_of_another() -> Result<Vec<usize>, String> {
    let (reader, writer) = must!(cops::io::pipe());
    let child = Command::new(harness::OWN_PATH).argument("--act").argument("tell-addresses");
    let child = must!(child.descriptor(1, writer.into_descriptor()).spawn());
    let mut text = Vec::new();
    loop {
        let (count, piece) = reader.read(alloc::vec![0; 256]).await;
        match must!(count) {
            0 => break,
            count => text.extend_from_slice(&piece[..count]),
        }
    }
    check_eq!(harness::wait(&child).await, Some(Ok(Ending::Exited(0))));
    let text = must!(core::str::from_utf8(&text));
    Ok(must!(text.lines().map(str::parse).collect::<Result<Vec<_>, _>>()))
}

pub async fn addresses_are_others_each_time() -> Outcome {
    let own = must!(addresses());
    let (one, other) = (addresses_of_another().await?, addresses_of_another().await?);
    check!(one.len() == own.len() && other.len() == own.len(), "{one:?} {other:?}");
    let mut same = 0;
    for ((own, one), other) in own.iter().zip(&one).zip(&other) {
        same += usize::from(own == one) + usize::from(own == other) + usize::from(one == other);
        check!(*one < 1 << 38 && *other < 1 << 38);
    }
    // Equal by chance in one of more than a hundred thousand cases for each of the eighteen.
    check!(same <= 1, "{own:x?} {one:x?} {other:x?}");
    Ok(())
}

/// Returns the top of the first stack: the program's path is the last item below it.
fn stack_top() -> usize {
    // SAFETY: the kernel puts a string there, which stays.
    let path = unsafe { core::ffi::CStr::from_ptr(told(auxiliary::EXECFN) as *const core::ffi::c_char) };
    (path.as_ptr() as usize + path.to_bytes_with_nul().len()).next_multiple_of(PAGE)
}

pub async fn nothing_fits_below_the_stack() -> Outcome {
    let top = stack_top();
    let flags = mapping::PRIVATE | mapping::ANONYMOUS | mapping::FIXED_NOREPLACE;
    let both = protection::READ | protection::WRITE;
    // SAFETY: the mapping replaces nothing.
    let map = |place: usize| unsafe { system::memory::map_with(place, PAGE, both, flags, -1, 0) };
    let bottom = top - STACK;
    for place in [bottom, bottom - PAGE, bottom - 2 * PAGE, bottom - GUARD / 2, bottom - GUARD] {
        check_eq!(map(place).err(), Some(Errno::EEXIST));
    }
    // A hint near the stack is not followed.
    // SAFETY: a new mapping.
    let near = must!(unsafe {
        let flags = mapping::PRIVATE | mapping::ANONYMOUS;
        system::memory::map_with(bottom - PAGE, PAGE, both, flags, -1, 0)
    });
    check!(!(bottom - GUARD..top).contains(&(near as usize)));
    // Below the guard there is room: no more than the guard is reserved.
    let below = must!(map(bottom - GUARD - PAGE));
    // SAFETY: no code uses them.
    unsafe {
        must!(system::memory::unmap(near, PAGE));
        must!(system::memory::unmap(below, PAGE));
    }
    Ok(())
}

/// Returns whether a word could be an address of the kernel. Small negative numbers are errors, and all ones "none".
fn is_of_the_kernel(word: u64) -> bool {
    (0xffff_ffc0_0000_0000..0xffff_ffff_ffff_0000).contains(&word)
}

pub async fn kernel_addresses_are_not_told() -> Outcome {
    let mut words: Vec<u64> = Vec::new();
    let ring = must!(system::worker::ring_setup(64, 0));
    let top = stack_top();
    let vector = must!(cops::arguments().next().ok_or("there is no argument")).as_ptr() as usize;
    let first = told(auxiliary::RANDOM).min(vector) / 8 * 8;
    for (start, length) in [
        (told(auxiliary::COPS_PROCESS_PAGE), PAGE),
        (told(auxiliary::COPS_GLOBAL_PAGE), PAGE),
        (told(auxiliary::COPS_COMPLETION_RING), 5 * PAGE),
        (ring, PAGE),
        (first, top - first),
    ] {
        // SAFETY: all of that is mapped, and may change while it is read.
        words.extend((start..start + length).step_by(8).map(|at| unsafe { (at as *const u64).read_volatile() }));
    }
    // The random bytes can have any value.
    let random = told(auxiliary::RANDOM);
    for at in [random, random + 8] {
        if let Some(place) = at.checked_sub(first) {
            words[(6 + 2) * PAGE / 8 + place / 8] = 0;
        }
    }
    words.extend((0..64).filter_map(system::start::auxiliary_value));
    words.extend(must!(system::system::counters()));
    words.extend(must!(system::scheduling::get(0)).words());
    let mut harts = [[0; HART_WORDS]; 8];
    let count = must!(system::trace::harts(&mut harts));
    words.extend(harts[..count].iter().flatten());
    let mut processes = [[0; PROCESS_WORDS]; 4];
    let count = must!(system::trace::processes(0, &mut processes));
    words.extend(processes[..count].iter().flatten());
    let told: Vec<_> = words.iter().filter(|word| is_of_the_kernel(**word)).collect();
    check!(told.is_empty(), "{told:x?}");
    check!(words.len() > 4000 && Counter::ALL.len() > 5);
    check_eq!(must!(authority::held(0)), Held::of(abi_unix::CapabilitySet::ALL));
    Ok(())
}
