//! What processes may do that concerns others: capabilities, with Linux's names and numbers.
//!
//! A process is named by its number; 0 is the caller. `capabilities(7)` says what the three sets are.

use abi_unix::authority::{Held, version};

use crate::{Result, call};

fn header(process: u32) -> [u32; 2] {
    [version::THREE, process]
}

/// What a process holds.
///
/// # Errors
///
/// `ESRCH` if there is no such process.
pub fn held(process: u32) -> Result<Held> {
    let mut header = header(process);
    let mut bytes = [0; Held::SIZE];
    // SAFETY: the kernel reads the header, and writes the three sets to memory that is ours.
    unsafe { call!(GetCapabilities, header.as_mut_ptr(), bytes.as_mut_ptr()) }?;
    Ok(Held::from_bytes(bytes))
}

/// Has a process hold exactly this: less than before, or with what the caller may give to those below it.
///
/// # Errors
///
/// `EPERM` for what neither the process holds nor the caller may give, and for a process that is not below the caller
/// unless that has `CAP_SETPCAP`; `ESRCH`.
pub fn set(process: u32, held: Held) -> Result<()> {
    let header = header(process);
    let bytes = held.to_bytes();
    // SAFETY: the kernel reads both.
    unsafe { call!(SetCapabilities, header.as_ptr(), bytes.as_ptr()) }.map(drop)
}
